package simtest

import (
	"regexp"
	"slices"
	"strings"

	"posthaste/internal/metrics"
	"posthaste/internal/proto"
)

// count adds what a process has counted.
func (b *books) count(m *proto.Measures) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.published == nil {
		b.published = map[string]float64{}
	}
	families := metrics.Families()
	for _, s := range m.Samples {
		for _, f := range families {
			if f.Name == s.Name && f.Kind == metrics.Counter {
				b.published[strings.Join(append([]string{s.Name}, s.Labels...), " ")] += s.Value
			}
		}
	}
}

// inLog are lines of the log that are counted, by what is published of them.
var inLog = map[string]*regexp.Regexp{
	"posthaste_smtpd_connections":   regexp.MustCompile(`^connect from `),
	"posthaste_deliveries sent":     regexp.MustCompile(`, status=sent `),
	"posthaste_deliveries deferred": regexp.MustCompile(`, status=deferred `),
	"posthaste_deliveries bounced":  regexp.MustCompile(`, status=bounced `),
	"posthaste_queue_activations":   regexp.MustCompile(` \(queue active\)$`),
	"posthaste_queue_removals":      regexp.MustCompile(`^\w+: removed$`),
}

// counted: what is published agrees with the log and with what happened. Of a process that was killed nobody has heard
// what it had counted last, so that runs with such are left out.
func (b *books) counted(log []line) {
	for _, f := range b.faults {
		if f.Kind == kill || f.Kind == powerCut {
			return
		}
	}
	for name, re := range inLog {
		n := 0.0
		for _, l := range log {
			if l.Process != "postfix/postsuper" && re.MatchString(l.Text) {
				n++
			}
		}
		if got := b.published[name]; got != n {
			b.fail("%s: %v are published, and the log has %v", name, got, n)
		}
	}
	b.accepted(log)
	b.delivered(log)
}

// accepted: cleanup has counted what clients were told that it is accepted, and perhaps what they have not waited for. A
// message that is queued again counts again.
func (b *books) accepted(log []line) {
	again := 0.0
	for _, l := range log {
		if strings.Contains(l.Text, ": requeued as ") {
			again++
		}
	}
	for source, local := range map[string]bool{"network": false, "local": true} {
		least, most := 0.0, again
		for _, f := range b.fates {
			if f.letter.Local != local {
				continue
			}
			if f.acknowledged() {
				least++
			}
			if f.whole {
				most++
			}
		}
		if n := b.published["posthaste_accepted_messages "+source]; n < least || n > most {
			b.fail("%v messages from %s are published as accepted, and %v to %v were", n, source, least, most)
		}
	}
}

// delivered: what next hops and maildirs have taken is sent, by the log, and the other way round but for what they have
// not said clearly. A line of "forwarded as" is of no delivery.
func (b *books) delivered(log []line) {
	least, most := 0, 0
	stops := slices.ContainsFunc(b.faults, func(f blow) bool { return f.Kind == restart }) // a stop does not wait for a reply
	for _, d := range b.deliveries {
		most += len(d.rcpts)
		if d.mood == good || d.mood == slowly && !stops {
			least += len(d.rcpts)
		}
	}
	n := 0
	for _, l := range log {
		if strings.Contains(l.Text, ", status=sent ") && !strings.Contains(l.Text, "(forwarded as ") {
			n++
		}
	}
	if n < least || n > most {
		b.fail("the log has %d deliveries, and %d to %d were made", n, least, most)
	}
}
