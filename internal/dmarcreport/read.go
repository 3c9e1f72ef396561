package dmarcreport

import (
	"bufio"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
)

const (
	maxRecord = 1 << 20 // octets of one record of a report
	maxRows   = 100000  // different rows of all reports
	maxJSON   = 2 << 20 // octets of a TLS report: an item takes more memory than text
	maxText   = 255     // octets of what is printed of a report
)

// A Row is mail of one kind that one source has sent in the name of a domain. Texts are of the
// reports, without control characters.
type Row struct {
	Domain      string `json:"domain"` // where the policy is published
	Source      string `json:"source"` // IP address
	From        string `json:"from"`   // domain of the From field
	Signer      string `json:"signer"` // of a signature that is good; empty: there was none
	Envelope    string `json:"envelope"`
	DKIM        string `json:"dkim"` // pass: a signature is aligned and good
	SPF         string `json:"spf"`
	Disposition string `json:"disposition"`
	Reason      string `json:"reason,omitempty"` // why the policy was not applied
}

// passed says whether DMARC did.
func (r *Row) passed() bool { return r.DKIM == "pass" || r.SPF == "pass" }

// A TLSRow is what one kind of TLS session with a domain came to; Failure is empty for those that
// were good.
type TLSRow struct {
	Domain  string `json:"domain"`
	Policy  string `json:"policy"` // sts, tlsa, no-policy-found
	Failure string `json:"failure,omitempty"`
	MX      string `json:"mx,omitempty"`
}

// A span is who reported on a domain, and of which time.
type span struct {
	reports    int
	by         map[string]bool
	begin, end time.Time
}

// A summary is what all reports say.
type summary struct {
	rows      map[Row]int64
	tlsRows   map[TLSRow]int64
	domains   map[string]*span // of DMARC reports
	tlsDomain map[string]*span
	seen      map[string]bool // reports, by receiver and number
}

func newSummary() *summary {
	return &summary{rows: map[Row]int64{}, tlsRows: map[TLSRow]int64{}, domains: map[string]*span{}, tlsDomain: map[string]*span{}, seen: map[string]bool{}}
}

// again says whether a report came before, and notes it.
func (s *summary) again(form, by, id string) bool {
	key := form + "\x00" + by + "\x00" + id
	old := s.seen[key]
	s.seen[key] = true
	return old
}

// countReport adds a report on a domain to the reports of m.
func countReport(m map[string]*span, domain, by string, begin, end time.Time) {
	sp := m[domain]
	if sp == nil {
		sp = &span{by: map[string]bool{}, begin: begin, end: end}
		m[domain] = sp
	}
	sp.reports++
	sp.by[by] = true
	if begin.Before(sp.begin) {
		sp.begin = begin
	}
	if end.After(sp.end) {
		sp.end = end
	}
}

// clean is a text of a report as it may be printed.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(text), "?"))
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}

// domain is a name of a report, for comparison.
func domain(text string) string { return strings.ToLower(strings.TrimSuffix(clean(text), ".")) }

// metadata and the types below are the elements of a report. Elements are found in any namespace,
// since the older forms have another one or none.
type metadata struct {
	Org   string `xml:"org_name"`
	ID    string `xml:"report_id"`
	Begin int64  `xml:"date_range>begin"`
	End   int64  `xml:"date_range>end"`
}

type published struct {
	Domain string `xml:"domain"`
}

type record struct {
	Source      string   `xml:"row>source_ip"`
	Count       int64    `xml:"row>count"`
	Disposition string   `xml:"row>policy_evaluated>disposition"`
	DKIM        string   `xml:"row>policy_evaluated>dkim"`
	SPF         string   `xml:"row>policy_evaluated>spf"`
	Reasons     []reason `xml:"row>policy_evaluated>reason"`
	From        string   `xml:"identifiers>header_from"`
	Envelope    string   `xml:"identifiers>envelope_from"`
	Signatures  []result `xml:"auth_results>dkim"`
	Senders     []result `xml:"auth_results>spf"`
}

type reason struct {
	Type string `xml:"type"`
}

type result struct {
	Domain string `xml:"domain"`
	Result string `xml:"result"`
}

// A meter bounds what is read for one element. It gives octets one by one, so that the parser does
// not read ahead.
type meter struct {
	*bufio.Reader
	left int
}

func (m *meter) ReadByte() (byte, error) {
	if m.left--; m.left < 0 {
		return 0, fmt.Errorf("a part of it: %w", errTooLarge)
	}
	return m.Reader.ReadByte()
}

// Read is for character sets that have to be converted, which are read in larger pieces.
func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	if m.left -= n; m.left < 0 {
		return 0, fmt.Errorf("a part of it: %w", errTooLarge)
	}
	return n, err
}

// aggregate adds a DMARC report. Nothing of one that cannot be read to its end counts.
func (s *summary) aggregate(r io.Reader) error {
	in := &meter{Reader: bufio.NewReader(r)}
	d := xml.NewDecoder(in)
	d.CharsetReader = charset
	var head metadata
	var policy published
	rows := map[Row]int64{}
	root := false
	for {
		in.left = maxRecord
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch name := start.Name.Local; {
		case !root && name != "feedback":
			return errNone
		case !root:
			root = true
		case name == "report_metadata":
			err = d.DecodeElement(&head, &start)
		case name == "policy_published":
			err = d.DecodeElement(&policy, &start)
		case name == "record":
			var rec record
			if err = d.DecodeElement(&rec, &start); err == nil {
				rows[rec.row()] += max(rec.Count, 0)
			}
		default:
			err = d.Skip()
		}
		if err != nil {
			return err
		}
		if len(rows) > maxRows {
			return fmt.Errorf("over %d rows: %w", maxRows, errTooLarge)
		}
	}
	if !root || policy.Domain == "" {
		return errNone
	}
	return s.addRows(&head, domain(policy.Domain), rows)
}

// addRows adds the rows of a report, unless it came before.
func (s *summary) addRows(head *metadata, of string, rows map[Row]int64) error {
	by := clean(head.Org)
	if s.again("dmarc", by, head.ID) {
		return nil
	}
	if len(s.rows)+len(rows) > maxRows {
		return fmt.Errorf("more than %d rows in all reports: %w", maxRows, errTooLarge)
	}
	countReport(s.domains, of, by, time.Unix(head.Begin, 0).UTC(), time.Unix(head.End, 0).UTC())
	for row, n := range rows {
		row.Domain = of
		s.rows[row] += n
	}
	return nil
}

// row is what a record says, without the domain.
func (rec *record) row() Row {
	row := Row{Source: clean(rec.Source), From: domain(rec.From), Envelope: domain(rec.Envelope), DKIM: lower(rec.DKIM), SPF: lower(rec.SPF), Disposition: lower(rec.Disposition)}
	if a, err := netip.ParseAddr(row.Source); err == nil {
		row.Source = a.Unmap().WithZone("").String() // one address has many forms
	}
	for _, r := range rec.Signatures {
		if lower(r.Result) == "pass" {
			row.Signer = domain(r.Domain)
			break
		}
	}
	if row.Envelope == "" && len(rec.Senders) > 0 {
		row.Envelope = domain(rec.Senders[0].Domain)
	}
	if len(rec.Reasons) > 0 {
		row.Reason = lower(rec.Reasons[0].Type)
	}
	return row
}

func lower(text string) string { return strings.ToLower(clean(text)) }

// charset reads what old programs write; all octets of ISO 8859-1 are Unicode's first characters.
func charset(name string, r io.Reader) (io.Reader, error) {
	switch strings.ToLower(name) {
	case "utf-8", "us-ascii", "ascii":
		return r, nil
	case "iso-8859-1", "latin1", "windows-1252":
		return &latin{r: bufio.NewReader(r)}, nil
	}
	return nil, fmt.Errorf("unknown character set %.40q", name)
}

// latin turns ISO 8859-1 into UTF-8.
type latin struct {
	r    io.ByteReader
	rest []byte
}

func (l *latin) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		c, err := l.r.ReadByte()
		if err != nil {
			return 0, err
		}
		l.rest = []byte(string(rune(c)))
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// tlsReport is a TLS report: RFC 8460 section 4.4.
type tlsReport struct {
	Org   string `json:"organization-name"`
	ID    string `json:"report-id"`
	Range struct {
		Begin time.Time `json:"start-datetime"`
		End   time.Time `json:"end-datetime"`
	} `json:"date-range"`
	Policies []struct {
		Policy struct {
			Type   string `json:"policy-type"`
			Domain string `json:"policy-domain"`
		} `json:"policy"`
		Summary struct {
			Good int64 `json:"total-successful-session-count"`
			Bad  int64 `json:"total-failure-session-count"`
		} `json:"summary"`
		Failures []struct {
			Type string `json:"result-type"`
			MX   string `json:"receiving-mx-hostname"`
			N    int64  `json:"failed-session-count"`
		} `json:"failure-details"`
	} `json:"policies"`
}

// tls adds a TLS report.
func (s *summary) tls(r io.Reader) error {
	var rep tlsReport
	if err := json.NewDecoder(&limited{r: r, n: maxJSON}).Decode(&rep); err != nil {
		return err
	}
	if len(rep.Policies) == 0 {
		return errNone
	}
	by := clean(rep.Org)
	if s.again("tls", by, rep.ID) {
		return nil
	}
	for i := range rep.Policies {
		p := &rep.Policies[i]
		row := TLSRow{Domain: domain(p.Policy.Domain), Policy: lower(p.Policy.Type)}
		countReport(s.tlsDomain, row.Domain, by, rep.Range.Begin.UTC(), rep.Range.End.UTC())
		s.tlsRows[row] += max(p.Summary.Good, 0)
		explained := int64(0)
		for _, f := range p.Failures {
			bad := row
			bad.Failure, bad.MX = cmp.Or(lower(f.Type), "unknown"), domain(f.MX)
			s.tlsRows[bad] += max(f.N, 0)
			explained += max(f.N, 0)
		}
		// Not every reporter says of each failure what it was.
		if row.Failure = "unknown"; p.Summary.Bad > explained {
			s.tlsRows[row] += p.Summary.Bad - explained
		}
		if len(s.tlsRows) > maxRows {
			return fmt.Errorf("more than %d rows in all reports: %w", maxRows, errTooLarge)
		}
	}
	return nil
}

// names are the keys of a set or a map, sorted.
func names[V any](m map[string]V) []string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}
