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
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/whoami"
)

const usage = `usage: posthaste suppress add [-c config_directory] [-t tenant] [-l list] [-r reason] [-e days] address...
       posthaste suppress remove [-c config_directory] [-t tenant] [-l list] address...
       posthaste suppress check [-c config_directory] [-t tenant] [-l list] address...
       posthaste suppress list [-j] [-c config_directory] [-t tenant] [-l list]
       posthaste suppress export [-c config_directory] [-t tenant] [-l list] [-F tab|csv|json]
       posthaste suppress import [-c config_directory] [-t tenant] [-l list] [-r reason] [-F tab|csv|json] [file]`

// all stands for all lists, where a list is named: no list has that name.
const all = "*"

// An Entry is an entry as list -j prints it.
type Entry struct {
	List    string     `json:"list"`    // "*": it holds for all lists; TENANT/ and TENANT/LIST are a tenant's
	Address string     `json:"address"` // as RFC 5321 has it
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
	tenant string    // "": not given
	list   string    // the same
	format string    // of export and import
	plain  io.Writer // standard output, where it does not matter if nobody reads it
	reason string
	days   int    // 0: for ever
	batch  string // names this import
	args   []string
	now    func() time.Time
}

// Run runs posthaste suppress, and returns its exit status: 0, or of sysexits.h. That of check is 1 if one of
// the addresses is suppressed.
func Run(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{Tool: &cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}, now: time.Now, format: "tab", plain: stdout}
	defer func() {
		if c.client != nil {
			c.client.Close()
		}
	}()
	found := false
	status := c.Run(map[string]cli.Verb{
		"add":    {Letters: "c:e:l:r:t:", Min: 1, Max: proto.MaxSuppressions, Do: c.add},
		"remove": {Letters: "c:l:t:", Min: 1, Max: proto.MaxSuppressions, Do: c.remove},
		"check":  {Letters: "c:l:t:", Min: 1, Max: 1 << 20, Do: func() (err error) { found, err = c.check(); return err }},
		"list":   {Letters: "c:jl:t:", Do: c.print},
		"export": {Letters: "F:c:l:t:", Do: c.export},
		"import": {Letters: "F:c:l:r:t:", Max: 1, Do: c.importing},
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
		case 't':
			if !mail.GroupName(o.Value) {
				return cli.Errorf(cli.ExitUsage, "-t: %.100q is no name of a tenant", o.Value)
			}
			c.tenant = o.Value
		case 'F':
			if c.format = o.Value; o.Value != "tab" && o.Value != "csv" && o.Value != "json" {
				return cli.Errorf(cli.ExitUsage, "-F: %.100q is no format: expected tab, csv or json", o.Value)
			}
		}
	}
	if c.tenant != "" && c.list == all {
		return cli.Errorf(cli.ExitUsage, "-t with -l '*': -t alone is all mail of the tenant")
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

// scope is what the options name, as entries have it.
func (c *command) scope() string { return suppressclient.Scope(c.tenant, listName(c.list)) }

// named says whether they name anything.
func (c *command) named() bool { return c.tenant != "" || c.list != "" }

// entries are those that the arguments name, as read reads them.
func (c *command) entries(reason string, read func(string) (string, bool)) (list []proto.Suppression, err error) {
	now := c.now()
	for i, a := range c.args {
		a, ok := read(a)
		if !ok {
			return nil, cli.Errorf(cli.ExitUsage, "%.100q is no mail address", c.args[i])
		}
		e := proto.Suppression{List: c.scope(), Address: a, Reason: reason, Origin: who(), Time: now.Unix()}
		if c.reason != "" {
			e.Reason = c.reason
		}
		if c.days > 0 {
			e.Until = now.AddDate(0, 0, c.days).Unix()
		}
		list = append(list, e)
	}
	return list, nil
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
	list, err := c.entries("manual", rfc5322.Mailbox)
	if err == nil {
		_, err = c.change(proto.SuppressAdd, list)
	}
	return err
}

func (c *command) remove() error {
	list, err := c.entries("", func(text string) (string, bool) {
		if address, ok := rfc5322.Mailbox(text); ok {
			return address, true
		}
		return former(text)
	})
	if err != nil {
		return err
	}
	n, err := c.change(proto.SuppressRemove, list)
	if err != nil {
		return err
	}
	if missing := len(c.args) - int(n); missing > 0 {
		return cli.Errorf(cli.ExitData, "%d of %d addresses were not on list %s", missing, len(c.args), shown(c.scope()))
	}
	return nil
}

// check says of each address whether mail of the list may go to it, or, without a list, which lists it is on.
func (c *command) check() (found bool, err error) {
	for _, text := range c.args {
		a, ok := rfc5322.Mailbox(text)
		if !ok {
			return false, cli.Errorf(cli.ExitUsage, "%.100q is no mail address", text)
		}
		if !c.named() {
			some, err := c.checkAll(a)
			if err != nil {
				return false, err
			}
			found = found || some
			continue
		}
		reply, err := c.client.Ask(context.Background(), &proto.SuppressAsk{List: c.scope(), Address: a})
		if err != nil {
			return false, cli.Errorf(cli.ExitUnavailable, "%v", err)
		}
		if !reply.Suppressed {
			fmt.Fprintf(c.Stdout, "%s: not suppressed\n", rfc5322.Quote(a))
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
		fmt.Fprintf(c.Stdout, "%s: not suppressed, for any list\n", rfc5322.Quote(address))
	}
	return found, nil
}

// describe is an entry in words.
func describe(e *proto.Suppression) string {
	text := fmt.Sprintf("%s: %s, list %s, since %s", rfc5322.Quote(e.Address), e.Reason, shown(e.List), time.Unix(e.Time, 0).UTC().Format("2006-01-02 15:04 UTC"))
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

// each calls f for all entries, or those of the list or the tenant that was named.
func (c *command) each(f func(e *proto.Suppression) error) error {
	q := &proto.SuppressPage{List: c.scope(), All: !c.named()}
	if c.list == "" {
		q.Tenant = c.tenant // and all lists of it
	}
	for {
		page, err := c.client.Page(context.Background(), q)
		if err != nil {
			return cli.Errorf(cli.ExitUnavailable, "%v", err)
		}
		for i := range page.Entries {
			if err := f(&page.Entries[i]); err != nil {
				return cli.Errorf(cli.ExitIO, "%v", err)
			}
		}
		if q.After = page.Next; page.Next == "" {
			return nil
		}
	}
}

// entryOf is an entry as JSON has it.
func entryOf(e *proto.Suppression) Entry {
	j := Entry{List: shown(e.List), Address: rfc5322.Quote(e.Address), Reason: e.Reason, Origin: e.Origin, Detail: e.Detail, Time: time.Unix(e.Time, 0).UTC()}
	if e.Until != 0 {
		until := time.Unix(e.Until, 0).UTC()
		j.Until = &until
	}
	return j
}

func (c *command) print() error {
	out := bufio.NewWriter(c.Stdout)
	err := c.each(func(e *proto.Suppression) error {
		if !c.json {
			_, err := fmt.Fprintln(out, describe(e))
			return err
		}
		b, err := json.Marshal(entryOf(e))
		if err == nil {
			_, err = out.Write(append(b, '\n'))
		}
		return err
	})
	if err != nil {
		return err
	}
	return unwritten(out.Flush())
}

// unwritten is an error of the output; nil: there is none.
func unwritten(err error) error {
	if err != nil {
		return cli.Errorf(cli.ExitIO, "%v", err)
	}
	return nil
}
