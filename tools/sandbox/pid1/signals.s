#include "textflag.h"

// ignore is the handler of a signal: it returns to the kernel's or the runtime's restorer, see sigaction(2).
TEXT ·ignore(SB), NOSPLIT|NOFRAME, $0-0
	RET

GLOBL ·ignoreAddr(SB), RODATA, $8
DATA ·ignoreAddr(SB)/8, $·ignore(SB)
