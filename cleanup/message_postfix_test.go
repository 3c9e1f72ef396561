package cleanup

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/rfc5322"
)

// originRewriter adds the origin, as trivial-rewrite does with the parameters
// of the comparison.
type originRewriter struct{}

func (originRewriter) Rewrite(_ context.Context, _, addr string) (string, error) {
	if strings.HasPrefix(addr, "@") {
		if i := strings.IndexByte(addr, ':'); i > 0 && i < len(addr)-1 {
			addr = addr[i+1:]
		}
	}
	if !strings.Contains(addr, "@") {
		if user, host, ok := strings.Cut(addr, "%"); ok {
			addr = user + "@" + host
		} else if host, user, ok := strings.Cut(addr, "!"); ok {
			addr = user + "@" + host
		} else if addr != "" {
			addr += "@example.org"
		}
	}
	return strings.TrimSuffix(addr, "."), nil
}

// TestLikePostfix submits messages that were submitted to Postfix 3.7.11, and
// compares what is stored with what Postfix stored. Where ours is different on
// purpose the file says why.
func TestLikePostfix(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/postfix.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Conf, Content, Sender string
		Rcpts                 []string
		Refused               string
		Stored                string
		Final, Original       []string
		FinalSender           string `json:"final_sender"`
		Ours                  string
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 80 {
		t.Errorf("only %d messages compared", len(cases))
	}
	for i, tc := range cases {
		c := newCore(t, tc.Conf, nil)
		c.rewriter = originRewriter{}
		s := submission("local")
		s.Envelope.Sender = rfc5322.Unquote(tc.Sender)
		for _, r := range tc.Rcpts {
			s.Envelope.Recipients = append(s.Envelope.Recipients, mail.Recipient{Address: rfc5322.Unquote(r)})
		}
		out, r := feed(c, s, crlfText(latin1(tc.Content)), 0)
		if tc.Refused != "" || r.Refused != nil {
			if r.Refused == nil || r.Refused.Error() != tc.Refused {
				t.Errorf("%d: refused %v, Postfix %q", i, r.Refused, tc.Refused)
			}
			continue
		}
		want := tc.Stored
		if tc.Ours != "" {
			want = tc.Ours
		}
		want = strings.NewReplacer("QUEUEID", string(s.Envelope.ID), "Date: ARRIVAL", "Date: "+rfc5322.Date(arrival)).Replace(latin1(want))
		if out != crlfText(want) {
			t.Errorf("%d: stored\n%q\nwant\n%q", i, out, crlfText(want))
		}
		var final, original []string
		for _, rc := range r.Envelope.Recipients {
			final, original = append(final, rc.Address), append(original, rc.Orig())
		}
		if strings.Join(final, "|") != strings.Join(tc.Final, "|") {
			t.Errorf("%d: recipients %q, Postfix %q", i, final, tc.Final)
		}
		if strings.Join(original, "|") != strings.Join(tc.Original, "|") {
			t.Errorf("%d: originals %q, Postfix %q", i, original, tc.Original)
		}
		if r.Envelope.Sender != tc.FinalSender {
			t.Errorf("%d: sender %q, Postfix %q", i, r.Envelope.Sender, tc.FinalSender)
		}
	}
}

// latin1 turns the characters of the file into the bytes they stand for.
func latin1(s string) string {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}
