package suppresstool

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/suppress/suppressclient"
)

// Export and import have three formats, all with an entry on each line, and addresses as RFC 5321 has them, quoted where
// they must be:
//
//	tab   fields between tabs, in the order of columns, times in seconds since 1970
//	csv   RFC 4180: a line with the names of the columns first, times as of RFC 3339
//	json  an Entry, as list -j prints it

// maxLine bounds a line of an import, in octets.
const maxLine = 4096

// columns are those of csv, and in their order the fields of tab.
var columns = []string{"address", "list", "reason", "time", "until", "origin", "detail"}

// export prints entries as import takes them.
func (c *command) export() error {
	out := bufio.NewWriter(c.Stdout)
	table := csv.NewWriter(out)
	write := func(e *proto.Suppression) error {
		_, err := fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", written(rfc5322.Quote(e.Address)), shown(e.List), e.Reason, e.Time, e.Until, e.Origin, e.Detail)
		return err
	}
	switch c.format {
	case "csv":
		if err := table.Write(columns); err != nil {
			return unwritten(err)
		}
		write = func(e *proto.Suppression) error {
			return table.Write([]string{rfc5322.Quote(e.Address), shown(e.List), e.Reason, stamp(e.Time), stamp(e.Until), e.Origin, e.Detail})
		}
	case "json":
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		write = func(e *proto.Suppression) error { return enc.Encode(entryOf(e)) }
	}
	if err := c.each(write); err != nil {
		return err
	}
	table.Flush()
	return unwritten(errors.Join(table.Error(), out.Flush()))
}

// stamp is a time as csv has it; empty: there is none.
func stamp(t int64) string {
	if t == 0 {
		return ""
	}
	return time.Unix(t, 0).UTC().Format(time.RFC3339)
}

// written is an address as tab has it. One that would be taken for a comment has a "\" before it, and so has one that
// begins with that.
func written(address string) string {
	if address != "" && (address[0] == '#' || address[0] == '\\') {
		return "\\" + address
	}
	return address
}

// exitLost is the exit status of an import that counts while the list is lost all the same: others are missing from it.
const exitLost = 1

// importing has the service take in entries. Either all of them count when it has ended, or none.
func (c *command) importing() error {
	c.batch = rand.Text()
	in := c.Stdin
	if len(c.args) > 0 && c.args[0] != "-" {
		f, err := os.Open(c.args[0])
		if err != nil {
			return cli.Errorf(cli.ExitNoInput, "%v", err)
		}
		defer f.Close()
		in = f
	}
	if _, err := c.change(proto.SuppressBegin, nil); err != nil {
		return err
	}
	total, err := c.stage(in)
	if err != nil {
		return err
	}
	_, err = c.client.Change(context.Background(), &proto.SuppressChange{What: proto.SuppressEnd, Import: c.batch, Part: c.named()})
	if errors.Is(err, suppressclient.ErrLost) {
		return cli.Errorf(exitLost, "%d entries imported, and %w: mail under it waits until \"posthaste suppress import\" without -t and -l has brought what else is to be on it", total, err)
	}
	if err != nil {
		// It was asked again for as long as there is patience. The service may have carried it out, and not be there to say so.
		return cli.Errorf(cli.ExitUnavailable, "%v; it is not known whether the import counts: type it once more", err)
	}
	// It counts, and no exit status may say otherwise: not that of an output that nobody reads.
	_, _ = fmt.Fprintf(c.plain, "%d entries imported\n", total)
	return nil
}

// stage hands the lines of an import to the service, where they do not count yet, and says how many entries these are.
func (c *command) stage(in io.Reader) (total int, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	read, err := c.reader()
	if err != nil {
		return 0, err
	}
	var list []proto.Suppression
	flush := func() error {
		if len(list) == 0 {
			return nil
		}
		_, err := c.change(proto.SuppressStage, list)
		total += len(list)
		list = list[:0]
		return err
	}
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimRight(lines.Text(), "\r")
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // what spreadsheets write in front
		}
		e, ok, err := read(line)
		if err != nil {
			return 0, cli.Errorf(cli.ExitData, "line %d: %v; nothing was imported", n, err)
		}
		if !ok {
			continue
		}
		if list = append(list, e); len(list) == proto.MaxSuppressions {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return 0, cli.Errorf(cli.ExitNoInput, "%v; nothing was imported", err)
	}
	return total, flush()
}

// reader reads a line of the format; ok is false if there is no entry in it.
func (c *command) reader() (func(line string) (e proto.Suppression, ok bool, err error), error) {
	switch c.format {
	case "csv":
		return c.csvReader(), nil
	case "json":
		return func(line string) (e proto.Suppression, ok bool, err error) {
			if strings.TrimSpace(line) == "" {
				return e, false, nil
			}
			e, err = c.parseJSON(line)
			return e, err == nil, err
		}, nil
	}
	return func(line string) (e proto.Suppression, ok bool, err error) {
		if line == "" || line[0] == '#' {
			return e, false, nil
		}
		f := strings.Split(line, "\t")
		if len(f) > len(columns) {
			return e, false, fmt.Errorf("expected at most %d fields between tabs, have %d", len(columns), len(f))
		}
		f[0] = strings.TrimPrefix(f[0], "\\")
		e, err = c.entry(f)
		return e, err == nil, err
	}, nil
}

// csvReader reads lines of which the first names the columns. No field goes over lines: entries have none that do.
func (c *command) csvReader() func(line string) (proto.Suppression, bool, error) {
	var at []int // of columns, where a line has them
	return func(line string) (e proto.Suppression, ok bool, err error) {
		if line == "" {
			return e, false, nil
		}
		f, err := csv.NewReader(strings.NewReader(line)).Read()
		if err != nil {
			return e, false, err
		}
		if at == nil {
			at = make([]int, len(f))
			for i, name := range f {
				at[i] = slices.Index(columns, strings.ToLower(strings.TrimSpace(name)))
				if at[i] < 0 || slices.Contains(at[:i], at[i]) {
					return e, false, fmt.Errorf("the column %.40q: expected each of %s once, at most", name, strings.Join(columns, ", "))
				}
			}
			if !slices.Contains(at, 0) {
				return e, false, errors.New("there is no column address")
			}
			return e, false, nil
		}
		if len(f) != len(at) {
			return e, false, fmt.Errorf("it has %d fields, and the first line has %d", len(f), len(at))
		}
		fields := make([]string, len(columns))
		for i, to := range at {
			fields[to] = f[i]
		}
		e, err = c.entry(fields)
		return e, err == nil, err
	}
}

// parseJSON reads an Entry. Only the address must be there.
func (c *command) parseJSON(line string) (proto.Suppression, error) {
	var j struct {
		List, Address, Reason, Origin, Detail, Time, Until string
	}
	d := json.NewDecoder(bytes.NewReader([]byte(line)))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return proto.Suppression{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return proto.Suppression{}, errors.New("there is more than one value on the line")
	}
	return c.entry([]string{j.Address, j.List, j.Reason, j.Time, j.Until, j.Origin, j.Detail})
}

// mailbox reads an address, and says whether it may be one. A list of several between commas is none, nor is a line of a
// table that has other marks between its fields than tabs; a local part may have these.
func mailbox(text string) (address string, ok bool) {
	address, wellFormed := rfc5322.Mailbox(text)
	if ok = wellFormed; !ok {
		address, ok = former(text)
	}
	local, domain, _ := rfc5322.Split(address)
	quoted := wellFormed && text[0] == '"'
	several := !quoted && strings.Contains(local, "@") && strings.ContainsAny(local, ",;")
	return address, ok && !several && !strings.ContainsAny(domain, ",;")
}

// former reads what an earlier version took for an address that a list can have, such as "@example.com": a list may have
// it, and then its export must not be one that cannot be imported, nor must the entry be there for ever.
func former(text string) (address string, ok bool) {
	if rest, empty := strings.CutPrefix(text, `""`); empty && strings.HasPrefix(rest, "@") {
		text = rest // an empty local part is exported so
	}
	return text, suppressclient.ValidAddress(text) && !strings.Contains(text, " ")
}

// entry is that of fields in the order of columns; those at the end may be missing, and all but the first empty.
func (c *command) entry(f []string) (e proto.Suppression, err error) {
	f = append(slices.Clone(f), make([]string, len(columns)-len(f))...)
	address, ok := mailbox(f[0])
	if !ok {
		return e, fmt.Errorf("%.100q is no mail address", f[0])
	}
	e = proto.Suppression{Address: address, Reason: "import", Time: c.now().Unix(), Origin: f[5], Detail: f[6]}
	if e.List, err = c.belongs(f[1]); err != nil {
		return e, err
	}
	if f[2] != "" {
		e.Reason = f[2]
	}
	if c.reason != "" {
		e.Reason = c.reason
	}
	for i, to := range map[int]*int64{3: &e.Time, 4: &e.Until} {
		if f[i] == "" {
			continue
		}
		if *to, err = seconds(f[i]); err != nil {
			return e, err
		}
	}
	return e, nil
}

// belongs is the scope of an entry whose list a file names. What the options name counts more; and an import for a tenant
// brings nothing to another one, whatever is in the file.
func (c *command) belongs(list string) (string, error) {
	switch {
	case c.list != "" || list == "":
		return c.scope(), nil
	case list == all:
		return c.scope(), nil
	case !suppressclient.ValidScope(list):
		return "", fmt.Errorf("%.100q is no name of a list", list)
	}
	tenant, name := suppressclient.Parts(list)
	if c.tenant == "" {
		return list, nil
	}
	if tenant != "" && tenant != c.tenant {
		return "", fmt.Errorf("%.100q is a list of another tenant than %s", list, c.tenant)
	}
	return suppressclient.Scope(c.tenant, name), nil
}

// lastSecond is the last one that has a form in RFC 3339. A time behind it is one in milliseconds, as a rule; the list could not be
// printed as JSON with it, nor be shown to a tenant.
const lastSecond = 253402300799

// seconds reads a time: seconds since 1970, a time of RFC 3339, or a day.
func seconds(text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 && n <= lastSecond {
		return n, nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, text); err == nil && t.Unix() >= 0 {
			return t.Unix(), nil
		}
	}
	return 0, fmt.Errorf("%.40q is no time: expected seconds since 1970, or as 2026-11-28T12:00:00Z", text)
}
