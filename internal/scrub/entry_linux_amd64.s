#include "textflag.h"

// entry is where the kernel begins the program. The stack has the number of
// arguments, the arguments, a zero, the environment and a zero, 8 octets each.
TEXT ·entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ	0(SP), AX
	LEAQ	16(SP)(AX*8), BX
next:
	MOVQ	(BX), CX
	TESTQ	CX, CX
	JZ	done
	ADDQ	$8, BX
	CMPB	0(CX), $'G'
	JNE	next
	CMPB	1(CX), $'O'
	JNE	next
	MOVB	$'_', 0(CX)
	JMP	next
done:
	JMP	_rt0_amd64_linux(SB)
