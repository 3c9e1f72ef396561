// Package suppresstool is the command posthaste suppress: it looks at the suppression list and changes it. It asks the
// suppress service, which owns the list, and so needs a mail system that runs.
//
// # Security
//
// It is for root and mail_owner, whom the service's socket lets in. Texts of entries may be other servers': they are of
// printable characters when the service has them.
package suppresstool

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/whoami"
)

const usage = `usage: posthaste suppress add [-c config_directory] [-l list] [-r reason] [-e days] address...
       posthaste suppress remove [-c config_directory] [-l list] address...
       posthaste suppress check [-c config_directory] [-l list] address...
       posthaste suppress list [-j] [-c config_directory] [-l list]
       posthaste suppress export [-c config_directory] [-l list]
       posthaste suppress import [-c config_directory] [-l list] [-r reason] [file]`

// all stands for all lists, where a list is named: no list has that name.
const all = "*"

// maxLine bounds a line of an import, in octets.
const maxLine = 4096

// An Entry is an entry as list -j prints it.
type Entry struct {
	List    string     `json:"list"` // "*": it holds for all lists
	Address string     `json:"address"`
	Reason  string     `json:"reason"`
	Origin  string     `json:"origin,omitempty"`
	Detail  string     `json:"detail,omitempty"`
	Time    time.Time  `json:"time"`
	Until   *time.Time `json:"until,omitempty"`
}

// A command is one run of it.
type command struct {
	*cli.Tool
	client *suppressclient.Client
	json   bool
	list   string // "": not given
	reason string
	days   int    // 0: for ever
	batch  string // names this import
	args   []string
	now    func() time.Time
}

// Run runs posthaste suppress, and returns its exit status: 0, or of sysexits.h. That of check is 1 if one of
// the addresses is suppressed.
func Run(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{Tool: &cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}, now: time.Now}
	defer func() {
		if c.client != nil {
			c.client.Close()
		}
	}()
	found := false
	status := c.Run(map[string]cli.Verb{
		"add":    {Letters: "c:e:l:r:", Min: 1, Max: proto.MaxSuppressions, Do: c.add},
		"remove": {Letters: "c:l:", Min: 1, Max: proto.MaxSuppressions, Do: c.remove},
		"check":  {Letters: "c:l:", Min: 1, Max: 1 << 20, Do: func() (err error) { found, err = c.check(); return err }},
		"list":   {Letters: "c:jl:", Do: c.print},
		"export": {Letters: "c:l:", Do: c.export},
		"import": {Letters: "c:l:r:", Max: 1, Do: c.importing},
	}, usage, args, c.begin)
	if status == 0 && found {
		return 1
	}
	return status
}

// begin takes in the options and arguments.
func (c *command) begin(opts []cli.Option, rest []string) error {
	c.args = rest
	dir := ""
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			dir = o.Value
		case 'e':
			n, err := strconv.Atoi(o.Value)
			if err != nil || n < 1 || n > 36500 {
				return cli.Errorf(cli.ExitUsage, "-e, days: %q is no number from 1 to 36500", o.Value)
			}
			c.days = n
		case 'j':
			c.json = true
		case 'l':
			if o.Value != all && !suppressclient.ValidList(o.Value) {
				return cli.Errorf(cli.ExitUsage, "-l: %.100q is no name of a list", o.Value)
			}
			c.list = o.Value
		case 'r':
			c.reason = o.Value
		}
	}
	cfg, err := config.Load(config.Dir(dir))
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%v", err)
	}
	c.client = suppressclient.New(ipc.Unix(filepath.Join(cfg.String("queue_directory"), "private", suppressclient.Name)))
	return nil
}

// listName is a list as entries have it: those of all lists have none.
func listName(list string) string {
	if list == all {
		return ""
	}
	return list
}

// entries are those that the arguments name.
func (c *command) entries(reason string) []proto.Suppression {
	now := c.now()
	var list []proto.Suppression
	for _, a := range c.args {
		e := proto.Suppression{List: listName(c.list), Address: a, Reason: reason, Origin: who(), Time: now.Unix()}
		if c.reason != "" {
			e.Reason = c.reason
		}
		if c.days > 0 {
			e.Until = now.AddDate(0, 0, c.days).Unix()
		}
		list = append(list, e)
	}
	return list
}

// who has typed the command.
func who() string {
	if by := os.Getenv("SUDO_USER"); by != "" && os.Getuid() == 0 {
		return by
	}
	return whoami.Name()
}

// change has the service change the list.
func (c *command) change(what string, list []proto.Suppression) (uint64, error) {
	n, err := c.client.Change(context.Background(), &proto.SuppressChange{What: what, Import: c.batch, Entries: list})
	if err != nil {
		return 0, cli.Errorf(cli.ExitUnavailable, "%v", err)
	}
	return n, nil
}

func (c *command) add() error {
	_, err := c.change(proto.SuppressAdd, c.entries("manual"))
	return err
}

func (c *command) remove() error {
	n, err := c.change(proto.SuppressRemove, c.entries(""))
	if err != nil {
		return err
	}
	if missing := len(c.args) - int(n); missing > 0 {
		return cli.Errorf(cli.ExitData, "%d of %d addresses were not on list %s", missing, len(c.args), shown(listName(c.list)))
	}
	return nil
}

// check says of each address whether mail of the list may go to it, or, without a list, which lists it is on.
func (c *command) check() (found bool, err error) {
	for _, a := range c.args {
		if c.list == "" {
			some, err := c.checkAll(a)
			if err != nil {
				return false, err
			}
			found = found || some
			continue
		}
		reply, err := c.client.Ask(context.Background(), &proto.SuppressAsk{List: listName(c.list), Address: a})
		if err != nil {
			return false, cli.Errorf(cli.ExitUnavailable, "%v", err)
		}
		if !reply.Suppressed {
			fmt.Fprintf(c.Stdout, "%s: not suppressed\n", a)
			continue
		}
		found = true
		fmt.Fprintln(c.Stdout, describe(&reply.Entry))
	}
	return found, nil
}

// checkAll says on which lists an address is.
func (c *command) checkAll(address string) (found bool, err error) {
	page, err := c.client.Page(context.Background(), &proto.SuppressPage{Address: address})
	if err != nil {
		return false, cli.Errorf(cli.ExitUnavailable, "%v", err)
	}
	now := c.now().Unix()
	for i := range page.Entries {
		if e := &page.Entries[i]; e.Until == 0 || now < e.Until {
			found = true
			fmt.Fprintln(c.Stdout, describe(e))
		}
	}
	if !found {
		fmt.Fprintf(c.Stdout, "%s: not suppressed, for any list\n", address)
	}
	return found, nil
}

// describe is an entry in words.
func describe(e *proto.Suppression) string {
	text := fmt.Sprintf("%s: %s, list %s, since %s", e.Address, e.Reason, shown(e.List), time.Unix(e.Time, 0).UTC().Format("2006-01-02 15:04 UTC"))
	if e.Until != 0 {
		text += ", until " + time.Unix(e.Until, 0).UTC().Format("2006-01-02 15:04 UTC")
	}
	if e.Origin != "" {
		text += ", by " + e.Origin
	}
	if e.Detail != "" {
		text += " (" + e.Detail + ")"
	}
	return text
}

func shown(list string) string {
	if list == "" {
		return all
	}
	return list
}

// each calls f for all entries, or those of the list that was named.
func (c *command) each(f func(e *proto.Suppression) error) error {
	q := &proto.SuppressPage{List: listName(c.list), All: c.list == ""}
	for {
		page, err := c.client.Page(context.Background(), q)
		if err != nil {
			return cli.Errorf(cli.ExitUnavailable, "%v", err)
		}
		for i := range page.Entries {
			if err := f(&page.Entries[i]); err != nil {
				return err
			}
		}
		if q.After = page.Next; page.Next == "" {
			return nil
		}
	}
}

func (c *command) print() error {
	out := bufio.NewWriter(c.Stdout)
	err := c.each(func(e *proto.Suppression) error {
		if !c.json {
			_, err := fmt.Fprintln(out, describe(e))
			return err
		}
		j := Entry{List: shown(e.List), Address: e.Address, Reason: e.Reason, Origin: e.Origin, Detail: e.Detail, Time: time.Unix(e.Time, 0).UTC()}
		if e.Until != 0 {
			until := time.Unix(e.Until, 0).UTC()
			j.Until = &until
		}
		b, err := json.Marshal(j)
		if err == nil {
			_, err = out.Write(append(b, '\n'))
		}
		return err
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

// export prints entries as import takes them: fields between tabs. An address that would be taken for a comment has a "\"
// before it, and so has one that begins with that.
func (c *command) export() error {
	out := bufio.NewWriter(c.Stdout)
	err := c.each(func(e *proto.Suppression) error {
		_, err := fmt.Fprintf(out, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", written(e.Address), shown(e.List), e.Reason, e.Time, e.Until, e.Origin, e.Detail)
		return err
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

// written is an address as export prints it.
func written(address string) string {
	if address != "" && (address[0] == '#' || address[0] == '\\') {
		return "\\" + address
	}
	return address
}

// plausible says whether a text may be an address. A list of several between commas is none, nor is a line of a table that
// has other marks between its fields than tabs; a local part may have these.
func plausible(address string) bool {
	at := strings.LastIndexByte(address, '@')
	if at < 0 || strings.ContainsAny(address, " ") {
		return false
	}
	local, domain := address[:at], address[at+1:]
	return !strings.ContainsAny(domain, ",;") && !(strings.Contains(local, "@") && strings.ContainsAny(local, ",;"))
}

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
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	var list []proto.Suppression
	total := 0
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
		if line == "" || line[0] == '#' {
			continue
		}
		e, err := c.parse(line)
		if err != nil {
			return cli.Errorf(cli.ExitData, "line %d: %v; nothing was imported", n, err)
		}
		if list = append(list, e); len(list) == proto.MaxSuppressions {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return cli.Errorf(cli.ExitNoInput, "%v; nothing was imported", err)
	}
	if err := flush(); err != nil {
		return err
	}
	if _, err := c.change(proto.SuppressEnd, nil); err != nil {
		return err
	}
	fmt.Fprintf(c.Stdout, "%d entries imported\n", total)
	return nil
}

// parse reads a line: an address, and what export prints behind it, as far as it is there.
func (c *command) parse(line string) (e proto.Suppression, err error) {
	f := strings.Split(line, "\t")
	e = proto.Suppression{Address: strings.TrimPrefix(f[0], "\\"), List: listName(c.list), Reason: "import", Time: c.now().Unix()}
	if !plausible(e.Address) {
		return e, fmt.Errorf("%.100q is no mail address", e.Address)
	}
	if len(f) > 7 {
		return e, fmt.Errorf("expected at most 7 fields between tabs, have %d", len(f))
	}
	if len(f) > 1 && f[1] != "" && c.list == "" {
		if e.List = listName(f[1]); e.List != "" && !suppressclient.ValidList(e.List) {
			return e, fmt.Errorf("%.100q is no name of a list", f[1])
		}
	}
	if len(f) > 2 && f[2] != "" {
		e.Reason = f[2]
	}
	if c.reason != "" {
		e.Reason = c.reason
	}
	for i, to := range map[int]*int64{3: &e.Time, 4: &e.Until} {
		if len(f) > i && f[i] != "" {
			if *to, err = strconv.ParseInt(f[i], 10, 64); err != nil || *to < 0 {
				return e, fmt.Errorf("%.40q is no time in seconds since 1970", f[i])
			}
		}
	}
	if len(f) > 5 {
		e.Origin = f[5]
	}
	if len(f) > 6 {
		e.Detail = f[6]
	}
	return e, nil
}
