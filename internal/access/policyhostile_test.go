package access

import (
	"bufio"
	"net"
	"strings"
	"testing"
	"time"

	"posthaste/internal/lockstep/hostile"
)

// policyProtocol has an action and the same of each request: its recipient.
var policyProtocol = hostile.Protocol{
	Question: func(r *bufio.Reader, _ net.Conn) (key string, err error) {
		for {
			line, err := r.ReadString('\n')
			if err != nil || line == "\n" {
				return key, err
			}
			if v, ok := strings.CutPrefix(line, "recipient="); ok {
				key = strings.TrimSpace(v)
			}
		}
	},
	Answer:  func(key string) []byte { return []byte("action=" + key + "\n\n") },
	Endless: "action=x",
}

func openPolicy(tries int) func(t *testing.T, path string) hostile.Client {
	return func(t *testing.T, path string) hostile.Client {
		p := &policyClient{network: "unix", addr: path, endpoint: path, set: policySettings{timeout: 2 * time.Second,
			maxIdle: time.Minute, maxTTL: time.Minute, tries: tries}}
		t.Cleanup(p.close)
		return func(key string) (string, error) { return p.ask(t.Context(), []byte("recipient="+key+"\n\n")) }
	}
}

func TestHostilePolicyServer(t *testing.T) {
	t.Parallel()
	hostile.Run(t, policyProtocol, openPolicy(1))
	lines := policyProtocol
	lines.Endless = "a=b\n\n"[:4] // and then empty lines: an answer without an action
	t.Run("many lines", func(t *testing.T) { hostile.Run(t, lines, openPolicy(1)) })
}

// What is over a bound is refused, whatever comes after it.
func TestPolicyBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want string
	}{
		{"action=ok\n\n", "ok"}, {"action=ok\r\n\r\n", "ok"}, {strings.Repeat("a=b\n", maxAttributes-1) + "action=ok\n\n", "ok"},
		{strings.Repeat("a=b\n", maxAttributes) + "action=ok\n\n", ""}, {"a=" + strings.Repeat("x", maxPolicyReply/2) + "\naction=ok\n\n", "ok"},
		{"a=" + strings.Repeat("x", maxPolicyReply) + "\naction=ok\n\n", ""}, {"action\n\n", ""}, {"\n", ""}, {"action=ok\n", ""}, {"action=ok", ""},
	} {
		got, err := readAction(bufio.NewReader(strings.NewReader(tt.text)))
		if err != nil {
			got = ""
		}
		if got != tt.want {
			t.Errorf("%.30q: %q, %v; want %q", tt.text, got, err, tt.want)
		}
	}
}
