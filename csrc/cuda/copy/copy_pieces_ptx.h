#pragma once

// Made by .ci/kernel of copy_pieces.cu with the SHA-256
// 23862e51b27a685ae2dd54a05d11db930a8ba0785657ae33c7cf9f2411e65a12.

namespace dlslime::cuda {

// clang-format off
inline constexpr char kCopyPiecesPtx[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry dlslime_copy_pieces(
	.param .u64 dlslime_copy_pieces_param_0,
	.param .u32 dlslime_copy_pieces_param_1
)
{
	.reg .pred 	%p<7>;
	.reg .b32 	%r<86>;
	.reg .b64 	%rd<35>;
	ld.param.u64 	%rd19, [dlslime_copy_pieces_param_0];
	ld.param.u32 	%r7, [dlslime_copy_pieces_param_1];
	mov.u32 	%r1, %ntid.x;
	mov.u32 	%r8, %ctaid.x;
	mov.u32 	%r9, %tid.x;
	mad.lo.s32 	%r2, %r8, %r1, %r9;
	shr.u32 	%r85, %r2, 5;
	setp.ge.u32 	%p1, %r85, %r7;
	@%p1 bra 	$L__BB0_8;
	and.b32  	%r10, %r2, 31;
	cvt.u64.u32 	%rd1, %r10;
	or.b64  	%rd2, %rd1, 224;
	or.b64  	%rd3, %rd1, 128;
	mov.u32 	%r11, %nctaid.x;
	mul.lo.s32 	%r12, %r11, %r1;
	shr.u32 	%r4, %r12, 5;
	cvta.to.global.u64 	%rd4, %rd19;
	shl.b64 	%rd25, %rd3, 4;
$L__BB0_2:
	mul.wide.u32 	%rd20, %r85, 24;
	add.s64 	%rd21, %rd4, %rd20;
	ld.global.u64 	%rd22, [%rd21];
	cvta.to.global.u64 	%rd5, %rd22;
	ld.global.u64 	%rd23, [%rd21+8];
	cvta.to.global.u64 	%rd6, %rd23;
	ld.global.u64 	%rd24, [%rd21+16];
	shr.u64 	%rd7, %rd24, 4;
	setp.ge.u64 	%p2, %rd2, %rd7;
	mov.u64 	%rd34, %rd1;
	@%p2 bra 	$L__BB0_5;
	add.s64 	%rd31, %rd5, %rd25;
	add.s64 	%rd30, %rd6, %rd25;
	mov.u64 	%rd32, %rd1;
$L__BB0_4:
	.pragma "nounroll";
	ld.global.v4.u32 	{%r13, %r14, %r15, %r16}, [%rd30+-2048];
	ld.global.v4.u32 	{%r21, %r22, %r23, %r24}, [%rd30+-1536];
	ld.global.v4.u32 	{%r29, %r30, %r31, %r32}, [%rd30+-1024];
	ld.global.v4.u32 	{%r37, %r38, %r39, %r40}, [%rd30+-512];
	ld.global.v4.u32 	{%r45, %r46, %r47, %r48}, [%rd30];
	ld.global.v4.u32 	{%r53, %r54, %r55, %r56}, [%rd30+512];
	ld.global.v4.u32 	{%r61, %r62, %r63, %r64}, [%rd30+1024];
	ld.global.v4.u32 	{%r69, %r70, %r71, %r72}, [%rd30+1536];
	st.global.v4.u32 	[%rd31+-2048], {%r13, %r14, %r15, %r16};
	st.global.v4.u32 	[%rd31+-1536], {%r21, %r22, %r23, %r24};
	st.global.v4.u32 	[%rd31+-1024], {%r29, %r30, %r31, %r32};
	st.global.v4.u32 	[%rd31+-512], {%r37, %r38, %r39, %r40};
	st.global.v4.u32 	[%rd31], {%r45, %r46, %r47, %r48};
	st.global.v4.u32 	[%rd31+512], {%r53, %r54, %r55, %r56};
	st.global.v4.u32 	[%rd31+1024], {%r61, %r62, %r63, %r64};
	st.global.v4.u32 	[%rd31+1536], {%r69, %r70, %r71, %r72};
	add.s64 	%rd34, %rd32, 256;
	add.s64 	%rd26, %rd32, 480;
	add.s64 	%rd31, %rd31, 4096;
	add.s64 	%rd30, %rd30, 4096;
	setp.lt.u64 	%p3, %rd26, %rd7;
	mov.u64 	%rd32, %rd34;
	@%p3 bra 	$L__BB0_4;
$L__BB0_5:
	setp.ge.u64 	%p4, %rd34, %rd7;
	@%p4 bra 	$L__BB0_7;
$L__BB0_6:
	.pragma "nounroll";
	shl.b64 	%rd27, %rd34, 4;
	add.s64 	%rd28, %rd6, %rd27;
	add.s64 	%rd29, %rd5, %rd27;
	ld.global.v4.u32 	{%r77, %r78, %r79, %r80}, [%rd28];
	st.global.v4.u32 	[%rd29], {%r77, %r78, %r79, %r80};
	add.s64 	%rd34, %rd34, 32;
	setp.lt.u64 	%p5, %rd34, %rd7;
	@%p5 bra 	$L__BB0_6;
$L__BB0_7:
	add.s32 	%r85, %r85, %r4;
	setp.lt.u32 	%p6, %r85, %r7;
	@%p6 bra 	$L__BB0_2;
$L__BB0_8:
	ret;
}
)";
// clang-format on

} // namespace dlslime::cuda
