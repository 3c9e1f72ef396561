// Package token is the command posthaste token: it makes, lists and removes the tokens by which
// programs use the HTTP services of the mail system (package apitoken).
//
// # Security
//
// It is for root and the mail owner. In data_directory it acts with the rights of that directory's
// owner (package statedir). A token is printed once, when it is made, and is nowhere else.
package token

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/apitoken"
	"posthaste/internal/cli"
	"posthaste/internal/config"
)

const usage = `usage: posthaste token add [-c config_directory] [-r role]... [-s sender]... [-t tenant] [-q quota] [-e days] name
       posthaste token list [-j] [-c config_directory]
       posthaste token remove [-c config_directory] name...`

// A command is one run of it.
type command struct {
	*cli.Tool
	cfg  *config.Config
	json bool
	t    apitoken.Token
	days int // 0: it does not expire
	args []string
	// Opened by begin; nil before.
	store *apitoken.Store
	now   func() time.Time
}

// Run runs posthaste token, and returns its exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{Tool: &cli.Tool{Name: name, Stdout: stdout, Stderr: stderr}, now: time.Now}
	defer func() {
		if c.store != nil {
			c.store.Close()
		}
	}()
	return c.Run(map[string]cli.Verb{
		"add":    {Letters: "c:e:q:r:s:t:", Min: 1, Max: 1, Do: c.add},
		"list":   {Letters: "c:j", Do: c.list},
		"remove": {Letters: "c:", Min: 1, Max: 1 << 10, Do: c.remove},
	}, usage, args, c.begin)
}

// begin takes in the options and arguments, and opens the tokens that main.cf names.
func (c *command) begin(opts []cli.Option, rest []string) (err error) {
	c.args = rest
	dir, err := c.options(opts)
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "%v", err)
	}
	if c.cfg, err = config.Load(config.Dir(dir)); err != nil {
		return cli.Errorf(cli.ExitConfig, "%v", err)
	}
	if c.store, err = apitoken.Open(c.cfg.String("api_token_directory"), c.now); err != nil {
		return cli.Errorf(cli.ExitUnavailable, "%v", err)
	}
	return nil
}

// options reads them. dir is the configuration's directory.
func (c *command) options(opts []cli.Option) (dir string, err error) {
	number := func(v, what string) (int, error) {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 1e9 {
			return 0, fmt.Errorf("%s: %q is no number from 1 on", what, v)
		}
		return n, nil
	}
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			dir = o.Value
		case 'e':
			if c.days, err = number(o.Value, "-e, days"); err == nil && c.days > 36500 {
				err = fmt.Errorf("-e, days: 36500 is the most")
			}
		case 'j':
			c.json = true
		case 'q':
			c.t.Quota, err = number(o.Value, "-q, recipients a day")
		case 'r':
			c.t.Roles = append(c.t.Roles, o.Value)
		case 's':
			c.t.Senders = append(c.t.Senders, o.Value)
		case 't':
			c.t.Tenant = o.Value
		}
		if err != nil {
			return "", err
		}
	}
	return dir, nil
}

// add makes a token and prints it.
func (c *command) add() error {
	c.t.Name = c.args[0]
	if len(c.t.Roles) == 0 {
		c.t.Roles = []string{apitoken.Inject}
	}
	if c.days > 0 {
		c.t.Expires = c.now().UTC().AddDate(0, 0, c.days).Truncate(time.Second)
	}
	token, err := c.store.Add(c.t)
	if err != nil {
		return cli.Errorf(cli.ExitData, "%v", err)
	}
	fmt.Fprintln(c.Stdout, token)
	return nil
}

// remove withdraws tokens.
func (c *command) remove() error {
	for _, name := range c.args {
		if err := c.store.Remove(name); err != nil {
			return cli.Errorf(cli.ExitNoInput, "%v", err)
		}
	}
	return nil
}

// A Listed is a token as it is listed.
type Listed struct {
	Name    string    `json:"name"`
	Tenant  string    `json:"tenant,omitempty"`
	Roles   []string  `json:"roles"`
	Senders []string  `json:"senders,omitempty"`
	Quota   int       `json:"quota,omitempty"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
	Expired bool      `json:"expired"`
}

// list prints all tokens.
func (c *command) list() error {
	all, err := c.store.List()
	if err != nil {
		return cli.Errorf(cli.ExitUnavailable, "%v", err)
	}
	for _, t := range all {
		l := Listed{Name: t.Name, Tenant: t.Tenant, Roles: t.Roles, Senders: t.Senders, Quota: t.Quota, Created: t.Created, Expires: t.Expires,
			Expired: !t.Expires.IsZero() && !c.now().Before(t.Expires)}
		if c.json {
			b, err := json.Marshal(&l)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.Stdout, "%s\n", b)
			continue
		}
		c.print(&l)
	}
	return nil
}

// print prints one in words.
func (c *command) print(l *Listed) {
	text := l.Name + ": " + strings.Join(l.Roles, ", ")
	if l.Tenant != "" {
		text += "; tenant " + l.Tenant
	}
	if len(l.Senders) > 0 {
		text += "; from " + strings.Join(l.Senders, ", ")
	}
	if l.Quota > 0 {
		text += fmt.Sprintf("; %d recipients a day", l.Quota)
	}
	text += "; made " + l.Created.Format(time.DateOnly)
	switch {
	case l.Expired:
		text += "; expired " + l.Expires.Format(time.DateOnly)
	case !l.Expires.IsZero():
		text += "; expires " + l.Expires.Format(time.DateOnly)
	}
	fmt.Fprintln(c.Stdout, text)
}
