package access

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/table"
)

// Whoever follows a session sees what a policy server is told and what it says, and that a list
// ends as it began, however deep lists nest and however they end.
func TestTraceOfPolicy(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "policy") // short, for the socket's sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 4096)
		for n := 0; !strings.HasSuffix(string(b[:n]), "\n\n"); {
			m, err := c.Read(b[n:])
			if err != nil {
				return
			}
			n += m
		}
		c.Write([]byte("action=strict\n\n"))
	}()
	t.Cleanup(func() { l.Close(); <-done })
	e := evaluator(t, "smtpd_delay_reject = no\nsmtpd_restriction_classes = strict\nstrict = reject\nqueue_directory = "+dir+
		"\nsmtpd_client_restrictions = check_policy_service unix:"+dir+"/s, permit\n")
	var lines []string
	ctx := table.WithTrace(t.Context(), func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) })
	if reply := e.Connect(ctx, client()); reply == nil || reply.Code != 554 {
		t.Errorf("the reply is %v", reply)
	}
	text := strings.Join(lines, "\n") + "\n"
	for _, want := range []string{
		">>> START Client host RESTRICTIONS <<<\ngeneric_checks: name=check_policy_service\nsend attr request = smtpd_access_policy\nsend attr protocol_state = CONNECT\n",
		"\nsend attr client_address = 198.51.100.7\n", "\nsend attr sasl_username = \n",
		"\ninput attribute name: action\ninput attribute value: strict\ncheck_table_result: unix:" + dir + "/s strict unknown[198.51.100.7]\n" +
			">>> START Client host RESTRICTIONS <<<\ngeneric_checks: name=strict\n>>> START Client host RESTRICTIONS <<<\ngeneric_checks: name=reject\n" +
			"generic_checks: name=reject status=2\n>>> END Client host RESTRICTIONS <<<\ngeneric_checks: name=strict status=2\n>>> END Client host RESTRICTIONS <<<\n" +
			"generic_checks: name=check_policy_service status=2\n>>> END Client host RESTRICTIONS <<<\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the trace lacks\n%s\nand is\n%s", want, text)
		}
	}
}
