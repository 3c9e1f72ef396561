package metrics

import "testing"

// That mail cannot be queued is a failure of ours, whatever of.
func TestReasonOfNoQueue(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"451 4.3.0 Error: queue file write error", "451 4.3.2 Error: this server takes no mail now, other servers have its queue"} {
		if got := Reason(text); got != "internal failure" {
			t.Errorf("%q: %s", text, got)
		}
	}
}
