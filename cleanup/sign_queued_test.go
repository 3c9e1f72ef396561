package cleanup

import (
	"strings"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// Mail of our own users is queued with a signature by each key of its domain, and other mail as it came. Mail that should be signed
// and cannot be is refused for now, whoever brings it, and nothing of it is queued.
func TestSignQueued(t *testing.T) {
	t.Parallel()
	const text = "From: Ann <ann@A.test>\r\nMessage-Id: <m@a.test>\r\n\r\nbody\r\n"
	path, _ := testKey(t, 1)
	inside := mail.Client{Name: "in.test", Addr: "192.0.2.7", Proto: "ESMTP"}
	outside := mail.Client{Name: "out.test", Addr: "198.51.100.7", Proto: "ESMTP"}
	const maps = "dkim_sign_maps = inline:{ {a.test = s1:%KEY% s2:%KEY%} }\n"
	for name, c := range map[string]struct {
		main    string
		client  mail.Client
		user    string
		content string
		flags   proto.SubmitFlags
		signed  int    // how many signatures there are
		reply   string // "": it is queued
		queue   string
		log     string
	}{
		"submitted here":                 {signed: 2},
		"of another system":              {client: outside},
		"of a network of ours":           {client: inside, signed: 2},
		"of a user elsewhere":            {client: outside, user: "ann", signed: 2},
		"of another domain":              {content: strings.Replace(text, "A.test", "b.test", 1)},
		"of no domain":                   {content: strings.Replace(text, "ann@A.test", "ann", 1)},
		"signed before":                  {content: "DKIM-Signature: v=1; a=rsa-sha256; d=a.test; s=s1; h=from; bh=x; b=y\r\nDKIM-Signature: v=1; d=other.test; s=s1; h=from; bh=x; b=y\r\n" + text, signed: 3},
		"refused by a check":             {main: "header_checks = pcre:{ {/^From:/ REJECT no} }\n", reply: "550 5.7.1 no", queue: "none"},
		"no entry":                       {main: "dkim_sign_maps = inline:{ {a.test = nonsense} }\n", reply: "451 4.3.0 Error: queue file write error", queue: "none", log: "ID: message not accepted, try again later: not signed: "},
		"no entry, to be bounced":        {main: "dkim_sign_maps = inline:{ {a.test = nonsense} }\n", flags: proto.SubmitBounce, reply: "451 4.3.0 Error: queue file write error", queue: "none", log: "ID: message not accepted, try again later: not signed: "},
		"no key":                         {main: "dkim_sign_maps = inline:{ {a.test = s1:%KEY% s2:/nowhere/key} }\n", reply: "451 4.3.0 Error: queue file write error", queue: "none", log: "ID: message not accepted, try again later: not signed: DKIM key: "},
		"no networks":                    {main: "dkim_sign_networks = fail:networks\n", client: outside, reply: "451 4.3.0 Error: queue file write error", queue: "none", log: "ID: message not accepted, try again later: not signed: "},
		"too many fields":                {content: strings.Repeat("X: 1\r\n", maxFields) + text, reply: "552 5.3.4 Error: the message header is too long", queue: "none", log: "ID: message not queued: the header has more than"},
		"too many fields, to be bounced": {content: strings.Repeat("X: 1\r\n", maxFields) + text, flags: proto.SubmitBounce, queue: "error:5.3.4 the message header is too long HDRS", log: "ID: message returned to its sender: the header has more than"},
		"no key, of another":             {main: "dkim_sign_maps = inline:{ {a.test = nonsense} }\n", client: outside},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks := ""
			if strings.HasPrefix(c.main, "header_checks") {
				checks = c.main
			}
			s := newFiltered(t, checks)
			s.opt.Signer = testSigner(t, strings.ReplaceAll(maps+"dkim_sign_networks = 192.0.2.0/24\n"+c.main, "%KEY%", path))
			content := c.content
			if content == "" {
				content = text
			}
			q := s.mailOf(content)
			q.Milter, q.Envelope.Sender, q.Envelope.Client, q.Envelope.SASL.Username = 0, "bounces@list", c.client, c.user
			q.Flags |= c.flags
			s.checkResult(t, committed(s.server, q), q, c.reply, c.queue, c.log)
			if got := s.queued(t, q.Envelope.ID); got != nil {
				n, kept := 0, ""
				for field := range strings.SplitSeq(strings.ReplaceAll(got.Content, "\r\n\t", " "), "\r\n") {
					if strings.HasPrefix(field, "DKIM-Signature:") {
						n++
						kept += field + "\n"
					}
				}
				if n != c.signed || strings.Contains(kept, "b=y") != (name == "signed before") || strings.Count(kept, "d=a.test; s=s1") > 1 {
					t.Errorf("%d signatures, want %d:\n%s", n, c.signed, kept)
				}
				if !strings.HasSuffix(got.Content, content[strings.Index(content, "From:"):]) {
					t.Errorf("queued is\n%s", got.Content)
				}
			}
			if c.queue == "none" {
				s.nothingLeft(t)
			}
		})
	}
}
