package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"posthaste/internal/audit"
)

// exempt are the tests at whose ends the books need not add up, and why. At the end of every other test the
// books of its mail systems are audited: of all that they have accepted, by their logs, each recipient must have an
// outcome or be in the queue.
var exempt = map[string]string{
	"TestCluster":            killed,
	"TestClusterAdopts":      killed,
	"TestClusterRoll":        "the older version says of what another node has that it was removed",
	"TestClusterStorm":       killed,
	"TestDeliveryWaitKill":   killed,
	"TestDoubtful":           killed,
	"TestEventsKilled":       killed,
	"TestKill":               killed,
	"TestOneDiskFails":       "one of the queue's disks is the test's, and is gone by then",
	"TestKillAll":            killed,
	"TestKillDuringDelivery": killed,
}

const killed = "agents are killed, and what they have done and not come to logging is missing"

// books are those of nodes that share a queue: at the end their logs are audited together.
type books struct {
	open int // nodes that are still there
	logs []string
}

// addUp audits a mail system that is not running any more.
func (s *system) addUp() {
	test, _, _ := strings.Cut(s.t.Name(), "/")
	if exempt[test] != "" || s.original != nil {
		return
	}
	args := []string{"-c", s.path("etc"), s.path("mail.log")}
	if b := s.books; b != nil {
		b.open--
		b.logs = append(b.logs, s.log())
		if b.open > 0 {
			return
		}
		args = args[:2]
		for i, log := range b.logs {
			name := s.path(fmt.Sprintf("node%d.log", i))
			if err := os.WriteFile(name, []byte(log), 0o600); err != nil {
				s.t.Error(err)
			}
			args = append(args, name)
		}
	} else if s.log() == "" {
		return
	}
	if _, err := os.Stat(s.path("spool", "spool", "seg")); err != nil { // its disk was the test's, and is gone
		args = append([]string{"-q", "none"}, args...)
	}
	var out, errs bytes.Buffer
	if status := audit.Run("audit", args, nil, &out, &errs); status != 0 {
		s.t.Errorf("%s: audit: status %d\n%s%s", s.dir, status, errs.String(), out.String())
	}
}
