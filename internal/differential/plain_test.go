package differential

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	logHead = regexp.MustCompile(`^\w{3} [ \d]\d [\d:]{8} \S+ ([\w/.-]+)\[\d+\]: (.*)$`)
	// noise is what is in logs of both and says nothing of one message.
	noise = []*regexp.Regexp{
		regexp.MustCompile(`^\S+/smtpd: (connect|disconnect) from `),
		regexp.MustCompile(`^\S+/(anvil|scache|postfix-script|master|verify|tlsmgr|postlogd|flush)\b`),
		regexp.MustCompile(`/qmgr: \w+: removed`),
		regexp.MustCompile(`^\S+/smtp(d)?: (using backwards|warning: dict_nis)`),
		regexp.MustCompile(`warning: (file system clock is|resetting file time stamps)`), // a busy machine
		regexp.MustCompile(`: statistics: `),
		regexp.MustCompile(`(daemon started|starting the Postfix mail system)`),
	}
	queueID = regexp.MustCompile(`\b[0-9BCDFGHJ-NP-TV-Zbcdfghj-np-tv-z]{10,}z[0-9BCDFGHJ-NP-TV-Zbcdfghj-np-tv-y]+\b`)

	usual = []struct {
		re   *regexp.Regexp
		with string
	}{
		{regexp.MustCompile(`\w{3}, [ \d]\d \w{3} \d{4} [\d:]{8} [+-]\d{4} \(\w+\)`), "DATE"},
		{regexp.MustCompile(`delay=[\d.]+, delays=[\d./]+`), "delay"},
		{regexp.MustCompile(`(ID\d+)\.\d+/`), "$1.TIME/"},
		{regexp.MustCompile(`userid \d+`), "userid UID"},
		{regexp.MustCompile(`(ID\d+: from=<[^>]*>), size=\d+`), "$1, size"},
		{regexp.MustCompile(` SIZE=\d+`), " SIZE"},
		{regexp.MustCompile(`\{(client|daemon)_port\}=[1-9]\d*`), "{${1}_port}=PORT"},
		{regexp.MustCompile(`unknown\[127\.0\.0\.1\]:\d+`), "unknown[127.0.0.1]:PORT"},
	}
)

// plain takes out of a report what cannot be the same in both.
func (s *system) plain(text string) string {
	for _, id := range queueID.FindAllString(text, -1) {
		if s.names[id] == "" {
			s.names[id] = "ID" + strconv.Itoa(len(s.names)+1)
		}
		text = strings.ReplaceAll(text, id, s.names[id])
	}
	values := []string{s.dir, "{dir}", "127.0.0.1:" + strconv.Itoa(s.next.port()), "127.0.0.1:{sink}", "[127.0.0.1]:" + strconv.Itoa(s.next.port()), "[127.0.0.1]:{sink}",
		"127.0.0.1:" + strconv.Itoa(s.port), "127.0.0.1:{port}"}
	for _, f := range s.filters {
		values = append(values, "127.0.0.1:"+strconv.Itoa(f.port()), "127.0.0.1:{"+f.name+"}")
	}
	text = strings.NewReplacer(values...).Replace(text)
	for _, u := range usual {
		text = u.re.ReplaceAllString(text, u.with)
	}
	return text
}

// caseLog is what the log says, in an order that does not depend on which
// process was faster.
func (s *system) caseLog(log string) string {
	var lines []string
	for line := range strings.Lines(log) {
		m := logHead.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		// What is named by where it is in the order of time gets its name here.
		for _, id := range queueID.FindAllString(m[2], -1) {
			if s.names[id] == "" {
				s.names[id] = "ID" + strconv.Itoa(len(s.names)+1)
			}
		}
		text := m[1] + ": " + m[2]
		if !slices.ContainsFunc(noise, func(re *regexp.Regexp) bool { return re.MatchString(text) }) {
			lines = append(lines, fmt.Sprintf("log %s\n", s.plain(text)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// report leaves of a delivery status notification what is not the words of the
// one program or the other. Ours are in ASCII, and ask not to be reported upon.
func report(mail string) string {
	if !strings.Contains(mail, "report-type=delivery-status") {
		return mail
	}
	mail = strings.Replace(mail, " BODY=8BITMIME", "", 1)
	mail = strings.Replace(mail, " NOTIFY=NEVER", "", 1)
	var b strings.Builder
	words := false
	for line := range strings.Lines(mail) {
		text := strings.TrimSuffix(strings.TrimPrefix(line, "  | "), "\n")
		switch {
		case text == "Content-Description: Notification":
			words = true
		case strings.HasPrefix(text, "<"), strings.HasPrefix(text, "--"):
			words = false
		}
		if words || text == "" || text == "Content-Transfer-Encoding: 8bit" || strings.HasPrefix(text, "Content-Type: text/plain") {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}
