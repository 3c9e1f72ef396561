package mailauth

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"
)

const hostileBody = "body\r\n"

// forged is a signature that is good up to the last step, which costs the
// most.
func forged(tags string) string {
	sum := sha256.Sum256([]byte(hostileBody))
	return "DKIM-Signature: v=1; a=ed25519-sha256; d=example.com; s=s1; " + tags +
		"; bh=" + base64.StdEncoding.EncodeToString(sum[:]) + "; b=AAAA\r\n"
}

func hostile(header string) *Message {
	return &Message{Client: netip.MustParseAddr("192.0.2.99"), Helo: "h.test", Sender: "a@none.test", Header: []byte(header),
		Body: func() io.Reader { return strings.NewReader(hostileBody) }}
}

// What a signature may make us do is bounded: each of these took from seconds to
// minutes. It runs by itself, since it counts what is allocated.
func TestHostileSignatures(t *testing.T) {
	c := checker(t)
	const from = "From: a@example.com\r\n"
	names := "h=from" + strings.Repeat(":a", 7000)
	folded := strings.Repeat("X: a\r\n"+strings.Repeat(" a\r\n", 25000), 9)
	for name, tt := range map[string]struct {
		header string
		want   Result
		reason string
	}{
		"many names":         {strings.Repeat(forged(names), 5) + from + strings.Repeat("b:c\r\n", 1990), PermError, "too many names in h="},
		"folded":             {forged("h=from:x; c=relaxed") + from + folded, Fail, "signature did not verify: dkim: invalid Ed25519 signature"},
		"folded, simple":     {forged("h=from:x:x:x") + from + folded, PermError, "header folded too often"},
		"folded, not signed": {forged("h=from") + from + folded, Fail, "signature did not verify: dkim: invalid Ed25519 signature"},
		"long key":           {strings.Replace(forged("h=from"), "s=s1", "s=long", 1) + from, PermError, "no key for signature: the key is too long"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := c.dkim(t.Context(), hostile(tt.header))
		runtime.ReadMemStats(&after)
		if len(got) == 0 || got[0].Result != tt.want || got[0].Reason != tt.reason {
			t.Errorf("%s: %+v, want %s %s", name, got, tt.want, tt.reason)
		}
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 100 {
			t.Errorf("%s: %d MiB allocated", name, n)
		}
	}
}

// counted counts the pieces in which it is read.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) { c.n++; return c.Reader.Read(p) }

// Nor does a body of empty lines cost its square: the library goes over a run of
// them again with each piece that it gets, so that the pieces must be large.
func TestLargePieces(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	body := &counted{Reader: strings.NewReader(strings.Repeat("x", size))}
	m := hostile(forged("h=from; c=simple/simple") + "From: a@example.com\r\n")
	m.Body, m.BodySize = func() io.Reader { return body }, size
	if got := checker(t).dkim(t.Context(), m); len(got) != 1 || got[0].Reason != "body hash did not verify" {
		t.Errorf("%+v", got)
	}
	if body.n > 20 {
		t.Errorf("read in %d pieces", body.n)
	}
}

// A folded field is the same to a relaxed signature, whoever folded it.
func TestFoldedFieldVerifies(t *testing.T) {
	t.Parallel()
	c := checker(t)
	const text = "From: a@example.com\r\nTo: x@example.com,\r\n\ty@example.com,\r\n  z@example.com\r\nX-Other: 1\r\n 2\r\n\r\nbody\r\n"
	for _, how := range []dkim.Canonicalization{dkim.CanonicalizationRelaxed, dkim.CanonicalizationSimple} {
		m := signed(t, text, dkim.SignOptions{Domain: "example.com", HeaderCanonicalization: how, HeaderKeys: []string{"from", "to", "to", "subject"}})
		if got := c.dkim(t.Context(), m); len(got) != 1 || got[0].Result != Pass {
			t.Errorf("%s: %+v", how, got)
		}
		m.Header = bytes.Replace(m.Header, []byte("z@"), []byte("q@"), 1)
		if got := c.dkim(t.Context(), m); len(got) != 1 || got[0].Result != Fail {
			t.Errorf("%s, changed: %+v", how, got)
		}
		m.Header = append([]byte("To: one@more.test\r\n"), bytes.Replace(m.Header, []byte("q@"), []byte("z@"), 1)...)
		if got := c.dkim(t.Context(), m); len(got) != 1 || got[0].Result != Fail {
			t.Errorf("%s, with a field that was to be absent: %+v", how, got)
		}
	}
}

// The author is found behind any number of words.
func TestHiddenAuthor(t *testing.T) {
	t.Parallel()
	for _, n := range []int{10, 100, 10000, 50000} {
		r := checker(t).Check(t.Context(), hostile("From: "+strings.Repeat("a ", n)+"<ceo@example.com>\r\n"))
		if r.DMARC.From != "example.com" || r.Rejected() == nil {
			t.Errorf("after %d words: %+v", n, r.DMARC)
		}
	}
}
