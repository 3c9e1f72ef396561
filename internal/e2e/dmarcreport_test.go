package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What strangers send in the name of a domain is reported to it on the next day, by mail that is
// signed; and whoever reads reports with our command finds what happened.
func TestDMARCReport(t *testing.T) {
	t.Parallel()
	dns := nameServer(t, `
good.test. 60 IN TXT "v=spf1 ip4:192.0.2.1 -all"
_dmarc.good.test. 60 IN TXT "v=DMARC1; p=reject; rua=mailto:dmarc@good.test"
`)
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	out, entry := signingKey(s)
	s.configure(next.relayhost()+judging(dns, entry)+
		"dmarc_report_enable = yes\ndmarc_report_sender = reports@from.test\ndmarc_report_organization = From\n", "")
	s.start()
	for addr, want := range map[string]string{"192.0.2.1": "250 ", "192.0.2.66": "550 5.7.26 "} {
		replies := s.dialogue(t, "", "EHLO client.test", "XCLIENT NAME=[UNAVAILABLE] ADDR="+addr, "EHLO client.test", "MAIL FROM:<a@good.test>",
			"RCPT TO:<root@local.test>", "DATA", "From: <a@good.test>\r\nSubject: theirs\r\n\r\nbody\r\n.")
		if last := replies[len(replies)-1]; !strings.HasPrefix(last, want) {
			t.Fatalf("%s: %q", addr, replies)
		}
	}
	s.stop() // which writes what was counted
	now := time.Now().UTC()
	journals, err := filepath.Glob(s.path("data", "dmarc", "*.log"))
	if err != nil || len(journals) != 1 {
		t.Fatal(journals, err)
	}
	yesterday := now.AddDate(0, 0, -1).Format("2006-01-02")
	if err := os.Rename(journals[0], s.path("data", "dmarc", yesterday+".log")); err != nil {
		t.Fatal(err)
	}
	if list, status := s.tool(nil, "dmarc", "report", "--show"); status != 0 || list != yesterday+" good.test: 2 messages in 2 rows; counted so far\n" {
		t.Errorf("%d %s", status, list)
	}
	s.start()
	if said, status := s.tool(nil, "dmarc", "report", "--send-now"); status != 0 || !strings.Contains(said, "."+"good.test@") || !strings.Contains(said, " sent to mailto:dmarc@good.test") {
		t.Fatalf("%d %s", status, said)
	}
	s.waitLog(`to=<dmarc@good\.test>,.*status=sent`)
	list := next.received()
	if len(list) != 1 || list[0].from != "reports@from.test" {
		t.Fatalf("%d messages arrived", len(list))
	}
	if good := goodSignatures(t, list[0].data, keyRecord(out)); good != 1 {
		t.Errorf("%d good signatures in\n%s", good, list[0].data)
	}
	table, status := s.tool([]byte(list[0].data), "dmarc", "report")
	if status != 0 || !strings.Contains(table, "good.test: 1 report by From") || !strings.Contains(table, "192.0.2.66") || !strings.Contains(table, "1 messages passed DMARC, 1 failed") {
		t.Errorf("%d %s", status, table)
	}
	if left, status := s.tool(nil, "dmarc", "report", "--show"); status != 0 || left != "" {
		t.Errorf("%d %s", status, left)
	}
}
