package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A usage is one that sites have beyond relaying mail.
type usage struct {
	name     string
	main     string
	messages int
	rcpts    int                 // of each message
	to       string              // of messages with one
	lines    int                 // status=sent lines that each message leads to, when not one for each of rcpts
	files    map[string][]string // tables, by line
}

// lines are n lines of a table.
func lines(n int, line func(i int) string) (list []string) {
	for i := range n {
		list = append(list, line(i))
	}
	return list
}

// listMembers is how many a list of BenchmarkUsages has.
const listMembers = 20000

var usages = []usage{
	{name: "relay", messages: 3000},
	{name: "body_checks", main: "body_checks = regexp:{dir}/etc/body\n", messages: 1500, files: map[string][]string{
		"body": lines(50, func(i int) string {
			return fmt.Sprintf(`/\b(casino|poker%d)\b.*http:\/\/[a-z0-9.]+\/%d/ REJECT`, i, i)
		})}},
	{name: "header_checks", main: "header_checks = regexp:{dir}/etc/header\n", messages: 3000, files: map[string][]string{
		"header": lines(50, func(i int) string { return fmt.Sprintf(`/^(Subject|X-Offer%d):.*(free|win) money %d/ REJECT`, i, i) })}},
	{name: "rewriting", main: "virtual_alias_maps = texthash:{dir}/etc/virtual\ncanonical_maps = texthash:{dir}/etc/canonical\n", messages: 3000,
		files: map[string][]string{
			"virtual":   lines(5000, func(i int) string { return fmt.Sprintf("%dr@to.test %dreal@to.test", i, i) }),
			"canonical": append(lines(5000, func(i int) string { return fmt.Sprintf("s%d@from.test c%d@from.test", i, i) }), "a@from.test sender@from.test")}},
	{name: "access", main: "smtpd_sender_restrictions = check_sender_access texthash:{dir}/etc/access\n" +
		"smtpd_recipient_restrictions = check_recipient_access regexp:{dir}/etc/recipients, permit\n", messages: 3000, files: map[string][]string{
		"access":     lines(5000, func(i int) string { return fmt.Sprintf("bad%d@x.test REJECT", i) }),
		"recipients": lines(100, func(i int) string { return fmt.Sprintf("/^spam.*%d@/ REJECT", i) })}},
	{name: "recipients", messages: 20, rcpts: 1000},
	{name: "recipients-sender", main: "sender_dependent_relayhost_maps = texthash:{dir}/etc/relays\n", messages: 20, rcpts: 1000, files: map[string][]string{
		"relays": {"somebody@else.test [127.0.0.1]:1"}}},
	{name: "list", main: "alias_maps = texthash:{dir}/etc/aliases\ndefault_transport = discard\nrelayhost =\n", messages: 2,
		to: "list@local.test", lines: listMembers + 1, files: map[string][]string{
			"aliases": {"list :include:{dir}/etc/members"},
			"members": lines(listMembers, func(i int) string { return fmt.Sprintf("member%d@to%d.test", i, i%100) })}},
}

// BenchmarkUsages is mail relayed by us and by Postfix in turn, with settings, or of a
// kind, that sites have and a plain relay does not: lists of patterns, tables, many
// recipients. Load and next hop are smtp-source and smtp-sink. What is measured is the
// time to the last delivery.
//
//	go test ./internal/e2e -run '^$' -bench Usages -count 3
func BenchmarkUsages(b *testing.B) {
	source, sink := need(b, "smtp-source"), startSMTPSink(b)
	text := filepath.Join(b.TempDir(), "message")
	if err := os.WriteFile(text, []byte("From: a@from.test\nTo: b@to.test\nSubject: an ordinary message\n\n"+strings.Repeat("Lines of an ordinary message, some fifty letters each.\n", 180)), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, u := range usages {
		b.Run(u.name, func(b *testing.B) {
			o := options{unstarted: true, main: fmt.Sprintf("relayhost = [127.0.0.1]:%d\nsmtp_destination_concurrency_limit = 100\ndefault_process_limit = 200\n"+
				"smtpd_recipient_limit = 2000\nmailbox_size_limit = 0\n%s", sink, u.main)}
			loads := []*usageLoad{{system: newSystem(b, o), usage: u}, {system: newPostfix(b, o), usage: u}}
			for _, l := range loads {
				for name, list := range u.files {
					l.write("etc/"+name, strings.ReplaceAll(strings.Join(list, "\n")+"\n", "{dir}", l.dir))
				}
				l.start()
				l.round(source, text, min(20, u.messages))
				l.took = 0
			}
			for b.Loop() {
				for _, l := range loads {
					l.round(source, text, u.messages)
				}
			}
			rate := func(l *usageLoad) float64 {
				return float64(b.N*u.messages*max(u.rcpts, 1)) / l.took.Seconds()
			}
			b.ReportMetric(rate(loads[1]), "postfix/s")
			b.ReportMetric(rate(loads[0]), "ours/s")
			b.ReportMetric(rate(loads[0])/rate(loads[1]), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A usageLoad is one of the two systems with mail of one kind.
type usageLoad struct {
	*system
	usage
	sent int // lines in the log that there should be
	took time.Duration
}

// round sends messages and waits until all of them are delivered.
func (l *usageLoad) round(source, text string, messages int) {
	l.t.Helper()
	to := l.to
	if to == "" {
		to = "r@to.test"
	}
	start := time.Now()
	cmd := exec.Command(source, "-d", "-s", fmt.Sprint(min(relaySessions, messages)), "-F", text, "-m", fmt.Sprint(messages),
		"-r", fmt.Sprint(max(l.rcpts, 1)), "-f", "a@from.test", "-t", to, l.addr())
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("smtp-source: %v\n%s", err, out)
	}
	l.sent += messages * max(l.lines, l.rcpts, 1)
	l.eventually("all mail is delivered", func() bool { return strings.Count(l.log(), "status=sent") >= l.sent })
	l.took += time.Since(start)
}
