package e2e

import (
	"os"
	"os/user"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"
)

// Mail of our own is signed as it is delivered: what is completed and rewritten
// on the way is covered.
func TestSigned(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	out, entry := signingKey(s)
	s.configure(next.relayhost()+"canonical_maps = inline:{old@from.test=new@from.test}\nalways_add_missing_headers = yes\n"+
		"dkim_sign_maps = inline:{ {from.test="+entry+"}, {bad.test=s1:/nonexistent} }\n", "")
	s.start()
	long := strings.Repeat(strings.Repeat("x", 70)+"\n", 4000)
	s.mustSend("a@from.test", []string{"b@to.test"}, "From: <old@from.test>\nSubject: s\n\nbody\n")
	s.mustSend("a@from.test", []string{"b@to.test"}, "From: <old@from.test>\nSubject: s\n\n"+long)
	s.mustSend("a@from.test", []string{"b@to.test"}, "From: <x@else.test>\nSubject: s\n\nbody\n")
	err := s.send("a@from.test", []string{"b@to.test"}, "From: <x@bad.test>\nSubject: s\n\nbody\n")
	if err == nil || !strings.Contains(err.Error(), "4.3.0") {
		t.Errorf("a key that is not there: %v", err)
	}
	s.waitLog(`message not accepted, try again later: not signed: DKIM key: stat /nonexistent: no such file or directory`)
	s.tool([]byte("From: <x@bad.test>\nTo: b@to.test\n\nbody\n"), "sendmail", "-f", "a@from.test", "b@to.test")
	s.waitLog(`postfix/pickup\[\d+\]: warning: .*: not queued: 451 4\.3\.0 Error: queue file write error \(not signed: DKIM key: stat /nonexistent: no such file or directory\)`)
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 4) // the fourth tells postmaster of the key
	txt := keyRecord(out)
	var got []int
	for _, m := range next.received() {
		if m.from == "double-bounce@mta.test" {
			continue
		}
		good := goodSignatures(t, m.data, txt)
		if signed := strings.Contains(m.data, "new@from.test"); signed != (good == 1) {
			t.Errorf("%d good signatures in\n%.500s", good, m.data)
		}
		got = append(got, good)
	}
	if len(got) != 3 {
		t.Errorf("%d messages arrived", len(got))
	}
}

// signingKey makes a key for from.test, and returns what "dkim genkey" says and the key's
// entry for dkim_sign_maps.
func signingKey(s *system) (out, entry string) {
	s.t.Helper()
	out, status := s.tool(nil, "dkim", "genkey", "-d", "from.test", "-s", "s1", "-o", s.path("data"))
	if status != 0 {
		s.t.Fatal(out)
	}
	if os.Getuid() == 0 { // cleanup runs as the mail owner
		owner, _ := mailOwner(s.t)
		u, err := user.Lookup(owner)
		if err != nil {
			s.t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		if err := os.Chown(s.path("data", "from.test.s1.pem"), uid, -1); err != nil {
			s.t.Fatal(err)
		}
	}
	found := regexp.MustCompile(`(?m)^from\.test (s1:\S+)$`).FindStringSubmatch(out)
	if found == nil {
		s.t.Fatal(out)
	}
	return out, found[1]
}

// keyRecord is the text of the DNS record in what "dkim genkey" says.
func keyRecord(out string) (txt string) {
	record := regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(out, -1)
	for _, r := range record {
		txt += r[1]
	}
	return txt
}

// A message that was signed when it came in is signed again when it is queued again, as it is
// rewritten then, and has one signature.
func TestSignedAnew(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	out, entry := signingKey(s)
	main := next.relayhost() + "dkim_sign_maps = inline:{ {from.test=" + entry + "} }\n"
	s.configure(main+"defer_transports = smtp\n", "")
	s.start()
	s.mustSend("a@from.test", []string{"b@to.test"}, "From: <old@from.test>\nDKIM-Signature: v=1; d=else.test; s=s1\nSubject: s\n\nbody\n")
	s.waitLog(`status=deferred`)
	s.configure(main+"canonical_maps = inline:{old@from.test=new@from.test}\n", "")
	s.mustTool("reload")
	s.mustTool("postsuper", "-r", "ALL")
	s.waitLog(`status=sent`)
	list := next.received()
	if len(list) != 1 {
		t.Fatalf("%d messages arrived", len(list))
	}
	data := strings.Replace(list[0].data, "DKIM-Signature: v=1; d=else.test; s=s1\n", "", 1)
	if len(data) == len(list[0].data) || !strings.Contains(data, "new@from.test") || strings.Count(data, "DKIM-Signature:") != 1 {
		t.Errorf("%s", list[0].data)
	}
	if good := goodSignatures(t, data, keyRecord(out)); good != 1 {
		t.Errorf("%d good signatures in\n%s", good, data)
	}
}

// goodSignatures counts the signatures of from.test in a message. All are to be good
// by the key record txt.
func goodSignatures(t *testing.T, data, txt string) (good int) {
	t.Helper()
	vs, err := dkim.VerifyWithOptions(strings.NewReader(strings.ReplaceAll(data, "\n", "\r\n")),
		&dkim.VerifyOptions{LookupTXT: func(string) ([]string, error) { return []string{txt}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vs {
		if v.Err == nil && v.Domain == "from.test" {
			good++
		} else {
			t.Errorf("signature: %+v", v)
		}
	}
	return good
}

// TestSignedOnce: mail that was signed here, and comes back from a content filter that has
// changed it, has one signature, and that one is good.
func TestSignedOnce(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	out, entry := signingKey(s)
	s.configure(next.relayhost()+"dkim_sign_maps = inline:{ {from.test="+entry+"} }\n", "")
	s.start()
	s.mustSend("a@from.test", []string{"b@to.test"}, "From: <a@from.test>\nSubject: s\n\nbody\n")
	s.waitLog(`status=sent`)
	first := next.received()[0].data
	s.mustSend("a@from.test", []string{"b@to.test"}, strings.Replace(first, "Subject: s", "Subject: [checked] s", 1))
	s.waitLogN(`status=sent`, 2)
	for i, m := range next.received() {
		if n := strings.Count(m.data, "DKIM-Signature:"); n != 1 || strings.Contains(m.data, "[checked]") != (i == 1) {
			t.Errorf("message %d has %d signatures:\n%s", i, n, m.data)
		}
		if good := goodSignatures(t, m.data, keyRecord(out)); good != 1 {
			t.Errorf("message %d has %d good signatures:\n%s", i, good, m.data)
		}
	}
}
