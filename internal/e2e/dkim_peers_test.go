package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// pythonVerify says of each signature of a message whether it is good, and is
// when something in the message is changed, for Debian's python3-dkim: its
// arguments are what is changed, into what, and NAME=RECORD for each key.
const pythonVerify = `
import sys, dkim
old, new = (a.encode() for a in sys.argv[1:3])
records = dict(a.split("=", 1) for a in sys.argv[3:])
lookup = lambda name, timeout=5: records[name.decode().rstrip(".")].encode()
message = sys.stdin.buffer.read()
for i in range(message.count(b"DKIM-Signature:")):
    print(*(dkim.DKIM(m).verify(idx=i, dnsfunc=lookup) for m in (message, message.replace(old, new, 1))))
`

// TestSignaturesElsewhere makes keys of both kinds, publishes what genkey says,
// signs mail with them, and asks two other programs what they make of the signatures.
func TestSignaturesElsewhere(t *testing.T) {
	t.Parallel()
	opendkim := need(t, "opendkim")
	const python = "/usr/bin/python3" // Debian's, which has the package
	if out, err := exec.Command(python, "-c", "import dkim").CombinedOutput(); err != nil {
		testpeers.Missing(t, fmt.Sprintf("python3-dkim (%s)", bytes.TrimSpace(out)))
	}
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	entries, dataset := "", ""
	var records []string
	for _, kind := range []string{"rsa", "ed25519"} {
		out, status := s.tool(nil, "dkim", "genkey", "-d", "from.test", "-s", kind, "-t", kind, "-o", s.path("data"))
		if status != 0 {
			t.Fatal(out)
		}
		entry := regexp.MustCompile(`(?m)^from\.test (\S+)$`).FindStringSubmatch(out)
		if entry == nil {
			t.Fatal(out)
		}
		entries += " " + entry[1]
		txt := ""
		for _, part := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(out, -1) {
			txt += part[1]
		}
		records = append(records, kind+"._domainkey.from.test="+txt)
		dataset += kind + "._domainkey.from.test " + txt + "\n"
	}
	s.own(s.path("data")) // cleanup runs as the mail owner
	s.write("etc/keys", dataset)
	s.write("etc/opendkim.conf", fmt.Sprintf("Mode v\nTestDNSData file:%s\n", s.path("etc/keys")))
	s.configure(next.relayhost()+"dkim_sign_maps = inline:{ {from.test="+entries+"} }\nalways_add_missing_headers = yes\n", "")
	s.start()
	for _, body := range []string{
		"hello\n.\n..\n \n\n\n",
		"",
		strings.Repeat(strings.Repeat("x", 900)+"  \t y\n", 200),
		"Grüße\n",
	} {
		s.mustSend("a@from.test", []string{"b@to.test"}, "From: A <a@from.test>\nTo: b@to.test,\n\tc@to.test\nSubject:  two  spaces \nMIME-Version: 1.0\n"+
			"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: 8bit\n\n"+body)
	}
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 4)
	got := next.received()
	if len(got) != 4 {
		t.Fatalf("%d messages arrived", len(got))
	}
	for i, m := range got {
		if strings.Count(m.data, "\nDKIM-Signature:")+strings.Count(m.data[:1], "D") != 2 {
			t.Errorf("not two signatures:\n%.2000s", m.data)
		}
		// A message that is changed is found out, or the test would show nothing.
		wire := strings.ReplaceAll(m.data, "\n", "\r\n")
		verify := exec.Command(python, append([]string{"-c", pythonVerify, "To: b@", "To: d@"}, records...)...)
		verify.Stdin = strings.NewReader(wire)
		if out, err := verify.CombinedOutput(); err != nil || string(out) != "True False\nTrue False\n" {
			t.Errorf("python3-dkim: %v %s\n%.2000s", err, out, m.data)
		}
		for _, kind := range []string{"rsa", "ed25519"} { // it looks at one signature only
			name := fmt.Sprintf("message%d.%s", i, kind)
			s.write(name, onlySignature(wire, kind))
			out, err := exec.Command(opendkim, "-x", s.path("etc/opendkim.conf"), "-t", s.path(name)).CombinedOutput()
			if want := "verification (s=" + kind + ", d=from.test,"; err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "succeeded") {
				t.Errorf("opendkim: %v %s\n%.2000s", err, out, m.data)
			}
		}
	}
}

// onlySignature leaves out the signatures of a message that another key made.
func onlySignature(message, selector string) string {
	return regexp.MustCompile(`(?m)^DKIM-Signature:.*\r\n(?:[ \t].*\r\n)*`).ReplaceAllStringFunc(message, func(field string) string {
		if strings.Contains(field, "s="+selector+";") {
			return field
		}
		return ""
	})
}
