package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
)

// signedFields are what a DKIM signature covers.
var signedFields = regexp.MustCompile(`(?s)DKIM-Signature:.*?\bh=([^;]*);`)

// A tenant's mail gets a link for each recipient, by HTTP and by SMTP, and a signature covers it. Looking at the link changes
// nothing; who follows it as a mailbox provider does is on the list of this tenant when the answer comes, with an event,
// also after the service has been killed. Other tenants' mail goes on.
func TestUnsubscribe(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	web := freePort(t)
	if err := buildAside("posthaste-inject"); err != nil {
		t.Fatal(err)
	}
	in := &injector{address: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	s := newEvents(t, "", options{unstarted: true, main: "\n" + next.relayhost() + `unsubscribe_url = https://u.test/u/
unsubscribe_secret_file = {dir}/unsubscribe
suppress_tenants = acme
tenant_maps = inline:{ {ann@from.test = acme} {bob@from.test = other} }
tenant_header_clients = 127.0.0.0/8
smtpd_recipient_restrictions = reject_suppressed_recipient, permit_mynetworks, reject
dkim_sign_maps = inline:{ {from.test=k:{dir}/data/from.test.k.pem} }
dkim_sign_headers = from, subject
`, master: fmt.Sprintf("suppress unix - - n - 1 suppressd\n127.0.0.1:%d inet n - n - 100 unsubscribe -o unsubscribe_tls=no\n%s inet n - n - - inject\n", web, in.address)})
	in.s = s
	s.write("unsubscribe", "a secret of this test\n")
	if err := os.Chmod(s.path("unsubscribe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, status := s.tool(nil, "dkim", "genkey", "-d", "from.test", "-s", "k", "-t", "ed25519", "-o", s.path("data")); status != 0 {
		t.Fatal(out)
	}
	s.own(s.path("data")) // cleanup runs as the mail owner
	s.start()
	in.makeToken()
	links := map[string]string{} // by recipient
	arrived := func(n int) {
		t.Helper()
		s.eventually(fmt.Sprintf("%d have arrived", n), func() bool { return len(next.received()) == n })
		for _, m := range next.received() {
			_, link, _ := strings.Cut(m.data, "\nList-Unsubscribe: <https://u.test/u/")
			token, rest, _ := strings.Cut(link, ">\n")
			signed := signedFields.FindStringSubmatch(m.data)
			if token == "" || !strings.HasPrefix(rest, "List-Unsubscribe-Post: List-Unsubscribe=One-Click\n") || strings.Contains(m.data, "X-Unsubscribe") ||
				signed == nil || !strings.Contains(signed[1], "list-unsubscribe:list-unsubscribe-post") {
				t.Fatalf("%s", m.data)
			}
			links[m.to[0]] = token
		}
	}
	send := func(from, to string) error {
		return s.send(from, []string{to}, "Message-ID: <m@from.test>\r\nFrom: "+from+"\r\nX-Unsubscribe: letter\r\n\r\nx\r\n")
	}
	const both = `{"from": "ann@from.test", "to": ["joe@to.test", "jane@to.test"], "individual": true, "subject": "x", "text": "x", "campaign": "spring", "list_unsubscribe": {"one_click": true}}`
	if status, text, _ := in.post("/v1/messages", "application/json", both); status != 200 || strings.Contains(text, "refused") {
		t.Fatalf("%d %s\n%s", status, text, s.log())
	}
	if err := send("ann@from.test", "jim@to.test"); err != nil {
		t.Fatal(err)
	}
	arrived(3)
	follow := func(method, token string) (int, string) {
		t.Helper()
		var text []byte
		status := 0
		s.eventually("the service answers", func() bool { // it may have been killed a moment before
			r, err := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d/u/%s", web, token), strings.NewReader("List-Unsubscribe=One-Click"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			text, err = io.ReadAll(resp.Body)
			status = resp.StatusCode
			return err == nil && status != http.StatusServiceUnavailable
		})
		return status, string(text)
	}
	if status, text := follow("GET", links["joe@to.test"]); status != 200 || !strings.Contains(text, `<form method="post">`) {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := follow("POST", links["joe@to.test"]+"A"); status != 404 {
		t.Errorf("a link that nobody has made: %d", status)
	}
	if out, status := s.tool(nil, "suppress", "check", "joe@to.test"); status != 0 {
		t.Fatal(out)
	}
	for range 2 {
		for _, to := range []string{"joe@to.test", "jim@to.test"} {
			if status, text := follow("POST", links[to]); status != 200 {
				t.Fatalf("%s: %d %s\n%s", to, status, text, s.log())
			}
		}
		s.kill("suppressd")
	}
	out, _ := s.tool(nil, "suppress", "list", "-j", "-t", "acme")
	for _, want := range []string{`{"list":"acme/","address":"joe@to.test","reason":"unsubscribe","origin":`, `{"list":"acme/letter","address":"jim@to.test","reason":"unsubscribe","origin":`} {
		if strings.Count(out, "\n") != 2 || !strings.Contains(out, want) {
			t.Errorf("%s is not in %s", want, out)
		}
	}
	// The next mailing.
	status, text, _ := in.post("/v1/messages", "application/json", both)
	var r struct {
		Messages []struct{ Recipients []string }
		Refused  []struct{ Recipient, Detail string }
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 || len(r.Messages) != 1 || r.Messages[0].Recipients[0] != "jane@to.test" ||
		len(r.Refused) != 1 || r.Refused[0].Recipient != "joe@to.test" || !strings.Contains(r.Refused[0].Detail, "unsubscribe") {
		t.Errorf("%d %s", status, text)
	}
	if err := send("ann@from.test", "joe@to.test"); err == nil || !strings.Contains(err.Error(), "on the suppression list") {
		t.Errorf("the tenant's next message: %v", err)
	}
	// A recipient who has left one list gets the tenant's other mail at the door, and not that of the list at the end.
	if err := send("ann@from.test", "jim@to.test"); err != nil {
		t.Error(err)
	}
	s.waitLog(`to=<jim@to\.test>, relay=none,.*dsn=5\.7\.1, status=bounced \(recipient is on the suppression list: unsubscribe`)
	if err := s.send("bob@from.test", []string{"joe@to.test"}, "Message-ID: <o@from.test>\r\n\r\nx\r\n"); err != nil {
		t.Errorf("another tenant's mail: %v", err)
	}
	s.waitLog(`from=<bob@from\.test>|to=<joe@to\.test>.*status=sent`)
	checkUnsubscribed(s)
}

// checkUnsubscribed looks for the two events.
func checkUnsubscribed(s *system) {
	s.t.Helper()
	s.eventually("the events are there", func() bool {
		text, err := os.ReadFile(s.path("data", "events.json"))
		if err != nil {
			return false
		}
		ids := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			var e struct{ ID, Kind, Recipient, Tenant, Campaign, List string }
			if json.Unmarshal([]byte(line), &e) == nil && e.Kind == "unsubscribed" {
				ids[e.ID+" "+e.Recipient+" "+e.Tenant+"/"+e.List+" "+e.Campaign] = true
			}
		}
		joe, jim := false, false
		for id := range ids {
			joe = joe || strings.HasSuffix(id, " joe@to.test acme/ spring")
			jim = jim || strings.HasSuffix(id, " jim@to.test acme/letter ")
		}
		return len(ids) == 2 && joe && jim
	})
}
