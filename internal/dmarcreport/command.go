package dmarcreport

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"posthaste/internal/cli"
)

const usage = `usage: posthaste dmarc report [-j] [file ...]
       posthaste dmarc report --show [-j] [-c config_directory]
       posthaste dmarc report --send-now [-c config_directory]`

// Command runs posthaste dmarc, and returns its exit status.
func Command(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	t := &cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	if len(args) == 0 || args[0] != "report" {
		return t.Fatal(cli.ExitUsage, "%s", usage)
	}
	if len(args) > 1 && (args[1] == "--show" || args[1] == "--send-now") {
		return ours(t, args[1], args[2:])
	}
	opts, files, err := cli.Getopt(args[1:], "c:j") // -c, which all commands have, changes nothing
	if err != nil {
		return t.Fatal(cli.ExitUsage, "%v\n%s", err, usage)
	}
	s, status := newSummary(), 0
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, path := range files {
		if err := s.open(path, stdin); err != nil {
			t.Warn("%s: %v", path, err)
			status = cli.ExitData
		}
	}
	w := &cli.ErrWriter{W: stdout}
	if slices.ContainsFunc(opts, func(o cli.Option) bool { return o.Letter == 'j' }) {
		s.json(w)
	} else {
		s.text(w)
	}
	if w.Err != nil {
		return t.Fatal(cli.ExitIO, "%v", w.Err)
	}
	return status
}

// open adds the reports of a file, of which - is the standard input.
func (s *summary) open(path string, stdin io.Reader) error {
	if path == "-" {
		return s.file(stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.file(f)
}

// A counted row is one with its number.
type counted[R any] struct {
	row R
	n   int64
}

// sorted are rows in the order in which they are of interest: by domain, what failed first,
// then what is most.
func sorted[R comparable](m map[R]int64, of func(*R) (domain string, good bool)) []counted[R] {
	var list []counted[R]
	for r, n := range m {
		if n > 0 {
			list = append(list, counted[R]{r, n})
		}
	}
	slices.SortFunc(list, func(a, b counted[R]) int {
		da, ga := of(&a.row)
		db, gb := of(&b.row)
		rank := func(good bool) int {
			if good {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(da, db), rank(ga)-rank(gb), cmp.Compare(b.n, a.n), cmp.Compare(fmt.Sprint(a.row), fmt.Sprint(b.row)))
	})
	return list
}

// mail and sessions are the rows of both kinds, sorted.
func (s *summary) mail() []counted[Row] {
	return sorted(s.rows, func(r *Row) (string, bool) { return r.Domain, r.passed() })
}

func (s *summary) sessions() []counted[TLSRow] {
	return sorted(s.tlsRows, func(r *TLSRow) (string, bool) { return r.Domain, r.Failure == "" })
}

// json prints a JSON object for each row.
func (s *summary) json(w io.Writer) {
	e := json.NewEncoder(w)
	for _, c := range s.mail() {
		e.Encode(struct {
			Kind string `json:"kind"`
			Row
			Messages int64 `json:"messages"`
			Passed   bool  `json:"passed"`
		}{"dmarc", c.row, c.n, c.row.passed()})
	}
	for _, c := range s.sessions() {
		e.Encode(struct {
			Kind string `json:"kind"`
			TLSRow
			Sessions int64 `json:"sessions"`
		}{"tls", c.row, c.n})
	}
}

// text prints a table for each domain.
func (s *summary) text(w io.Writer) {
	rows := s.mail()
	for _, d := range names(s.domains) {
		good, bad := int64(0), int64(0)
		t := new(strings.Builder)
		tw := tabwriter.NewWriter(t, 0, 8, 2, ' ', 0)
		fmt.Fprintln(tw, "  messages\tDMARC\tDKIM\tSPF\tdone\tsource\tfrom\tsigned by\tenvelope\treason")
		for _, c := range rows {
			r := &c.row
			if r.Domain != d {
				continue
			}
			verdict := "fail"
			if r.passed() {
				good, verdict = good+c.n, "pass"
			} else {
				bad += c.n
			}
			fmt.Fprintf(tw, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.n, verdict, dash(r.DKIM), dash(r.SPF), dash(r.Disposition), dash(r.Source), dash(r.From), dash(r.Signer), dash(r.Envelope), dash(r.Reason))
		}
		tw.Flush()
		fmt.Fprintf(w, "%s: %s: %d messages passed DMARC, %d failed\n%s", d, s.domains[d], good, bad, t)
	}
	sessions := s.sessions()
	for _, d := range names(s.tlsDomain) {
		good, bad := int64(0), int64(0)
		t := new(strings.Builder)
		tw := tabwriter.NewWriter(t, 0, 8, 2, ' ', 0)
		fmt.Fprintln(tw, "  sessions\tTLS\tpolicy\tserver")
		for _, c := range sessions {
			r := &c.row
			if r.Domain != d {
				continue
			}
			if r.Failure == "" {
				good += c.n
			} else {
				bad += c.n
			}
			fmt.Fprintf(tw, "  %d\t%s\t%s\t%s\n", c.n, cmp.Or(r.Failure, "good"), dash(r.Policy), dash(r.MX))
		}
		tw.Flush()
		fmt.Fprintf(w, "%s: %s on TLS: %d sessions were good, %d failed\n%s", d, s.tlsDomain[d], good, bad, t)
	}
}

// dash stands for a text that is empty.
func dash(text string) string { return cmp.Or(text, "-") }

// String says how many reports there are, by whom and of when.
func (sp *span) String() string {
	by := names(sp.by)
	const most = 5
	if len(by) > most {
		by = append(by[:most:most], fmt.Sprintf("%d more", len(by)-most))
	}
	reports := "reports"
	if sp.reports == 1 {
		reports = "report"
	}
	return fmt.Sprintf("%d %s by %s, %s to %s", sp.reports, reports, strings.Join(by, ", "), sp.begin.Format("2006-01-02"), sp.end.Format("2006-01-02"))
}
