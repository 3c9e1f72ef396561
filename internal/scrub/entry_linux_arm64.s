#include "textflag.h"

// entry is where the kernel begins the program. The stack has the number of
// arguments, the arguments, a zero, the environment and a zero, 8 octets each.
TEXT ·entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD	0(RSP), R3
	ADD	$16, RSP, R4
	ADD	R3<<3, R4, R4
next:
	MOVD	(R4), R5
	CBZ	R5, done
	ADD	$8, R4
	MOVBU	0(R5), R6
	CMP	$'G', R6
	BNE	next
	MOVBU	1(R5), R6
	CMP	$'O', R6
	BNE	next
	MOVD	$'_', R6
	MOVB	R6, 0(R5)
	B	next
done:
	JMP	_rt0_arm64_linux(SB)
