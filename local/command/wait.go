package command

import (
	"golang.org/x/sys/unix"
)

// waitNoReap waits until process pid has ended and leaves it to be waited for
// again.
func waitNoReap(pid int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}
