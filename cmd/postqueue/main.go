// Postqueue lists the queue, and has it tried again: package postqueue as a
// program of its own, which is set-gid. The queue manager's socket is for the
// super-user and for setgid_group, so that sendmail and mailq run this program when
// they are run by somebody else.
//
//	postqueue [-v] [-c config_dir] -p | -j | -f | -i queue_id | -s site
//	postqueue [-v] [-c config_dir] -p | -j | -f [--dry-run] --sender=ADDRESS ...
//
// # Security
//
// Everybody may run it. The environment is not used but for MAIL_CONFIG (not by the Go
// runtime either: package scrub), and
// that, like -c, only names a directory that the default main.cf permits; see
// config.Permitted. Who may list the queue is authorized_mailq_users, who may have it tried
// again authorized_flush_users. While the mail system is down the group has no
// right to look at the spool.
package main

import (
	"fmt"
	"os"

	"posthaste/internal/postqueue"
	_ "posthaste/internal/scrub" // its entry is where this begins
	"posthaste/internal/usage"
)

func main() {
	if usage.Asked(os.Args[1:]) {
		fmt.Print(usage.Of("postqueue"))
		return
	}
	os.Exit(postqueue.Run("postqueue", os.Args[1:], os.Stdout, os.Stderr))
}
