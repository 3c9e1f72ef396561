package account

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/rights"
	"posthaste/internal/sasl"
	"posthaste/internal/table"
	"posthaste/internal/tabletext"
)

const usage = `usage: posthaste account add|passwd [-c config_directory] [-s scheme] user
       posthaste account app-password [-c config_directory] [-r] user name
       posthaste account list [-j] [-c config_directory] [user ...]
       posthaste account disable|enable|remove [-c config_directory] user ...
       posthaste account usage [-j] [-c config_directory] [user ...]
       posthaste account unlock [-c config_directory] user ...`

// exitExists is EX_CANTCREAT of sysexits.h.
const exitExists = 73

// A command is one run of it.
type command struct {
	*cli.Tool
	cfg     *config.Config
	json    bool
	remove  bool   // app-password -r
	scheme  string // of new hashes
	args    []string
	prompts passwordReader
}

// Run runs posthaste account, and returns its exit status.
func Run(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{Tool: &cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}, scheme: sasl.Schemes()[0], prompts: passwordsFrom(stdin, stderr)}
	return c.Run(map[string]cli.Verb{
		"add":          {Letters: "c:s:", Min: 1, Max: 1, Do: c.add},
		"passwd":       {Letters: "c:s:", Min: 1, Max: 1, Do: c.passwd},
		"app-password": {Letters: "c:r", Min: 2, Max: 2, Do: c.appPassword},
		"list":         {Letters: "c:j", Max: 1 << 16, Do: c.list},
		"disable":      {Letters: "c:", Min: 1, Max: 1 << 16, Do: func() error { return c.setDisabled(true) }},
		"enable":       {Letters: "c:", Min: 1, Max: 1 << 16, Do: func() error { return c.setDisabled(false) }},
		"remove":       {Letters: "c:", Min: 1, Max: 1 << 16, Do: c.removeAll},
		"usage":        {Letters: "c:j", Max: 1 << 16, Do: c.usage},
		"unlock":       {Letters: "c:", Min: 1, Max: 1 << 16, Do: c.unlock},
	}, usage, args, c.begin)
}

// begin takes in the options and arguments, and reads main.cf.
func (c *command) begin(opts []cli.Option, rest []string) (err error) {
	c.args = rest
	dir, err := c.options(opts)
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "%v", err)
	}
	if c.cfg, err = config.Load(config.Dir(dir)); err != nil {
		return cli.Errorf(cli.ExitConfig, "%v", err)
	}
	return nil
}

// options reads them. dir is the configuration's directory.
func (c *command) options(opts []cli.Option) (dir string, err error) {
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			dir = o.Value
		case 'j':
			c.json = true
		case 'r':
			c.remove = true
		case 's':
			if !slices.Contains(sasl.Schemes(), o.Value) {
				return "", fmt.Errorf("-s %s: expected one of %s", o.Value, strings.Join(sasl.Schemes(), ", "))
			}
			c.scheme = o.Value
		}
	}
	return dir, nil
}

// open finds the table. Where create is set, it is made if it is not there.
func (c *command) open(create bool) (tabletext.File, error) {
	t, ok := tabletext.Editable(c.cfg.List("account_maps"))
	if !ok {
		return t, cli.Errorf(cli.ExitConfig, "account_maps = %s: none of these tables can be edited here; where the accounts are in a database, change them there",
			c.cfg.String("account_maps"))
	}
	if err := t.Ours(); err != nil {
		return t, err
	}
	if create && !t.Exists() {
		gid := -1
		if rights.Switching() {
			u, err := user.Lookup(c.cfg.String("mail_owner"))
			if err == nil {
				gid, err = strconv.Atoi(u.Gid)
			}
			if err != nil {
				return t, fmt.Errorf("mail_owner: %w", err)
			}
		}
		if err := t.Create("Accounts that may log in: user password-hash [name:hash ...] [disabled] (posthaste account)", 0o640, gid); err != nil {
			return t, err
		}
	}
	return t, nil
}

// userName is a name in the form that tables have.
func userName(name string) (string, error) {
	prepared, ok := sasl.PrepareName(name)
	if !ok {
		return "", cli.Errorf(cli.ExitData, "%q cannot be a user's name: expected UTF-8 without white space, commas, colons, quotes and control characters", name)
	}
	return prepared, nil
}

// change edits accounts, one after the other, and has postmap build the table. edit gets the
// account as it is, nil when there is none.
func (c *command) change(create bool, names []string, edit func(name string, a *sasl.Account) (*sasl.Account, error)) error {
	t, err := c.open(create)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name, err = userName(name); err != nil {
			return err
		}
		err := t.Change(name, func(old string, found bool) (string, error) {
			var a *sasl.Account
			if found {
				if a, err = sasl.ParseAccount(old); err != nil {
					return "", cli.Errorf(cli.ExitData, "%s: account %s: %v", t.Path, name, err)
				}
			} else if !create {
				return "", noAccount(name)
			}
			changed, err := edit(name, a)
			if err != nil {
				return "", err
			}
			text := changed.String()
			if _, err := sasl.ParseAccount(text); err != nil { // too many passwords, say
				return "", cli.Errorf(cli.ExitData, "account %s: %v", name, err)
			}
			return text, nil
		})
		if errors.Is(err, fs.ErrNotExist) {
			err = noAccount(name)
		}
		if err != nil {
			return err
		}
	}
	return c.build(t)
}

func noAccount(name string) error { return cli.Errorf(cli.ExitNoInput, "there is no account %s", name) }

// build has postmap build the table where that is needed.
func (c *command) build(t tabletext.File) error {
	if !t.Built {
		return nil
	}
	return t.Build(c.cfg.Dir())
}

// add makes an account.
func (c *command) add() error {
	hash, err := c.hash(c.args[0], false)
	if err != nil {
		return err
	}
	err = c.change(true, c.args, func(name string, a *sasl.Account) (*sasl.Account, error) {
		if a != nil {
			return nil, exists(name)
		}
		return &sasl.Account{Password: hash}, nil
	})
	if err != nil {
		return err
	}
	return c.owner(c.args[0], true)
}

// passwd changes a password. Application passwords stay.
func (c *command) passwd() error {
	hash, err := c.hash(c.args[0], true)
	if err != nil {
		return err
	}
	return c.change(false, c.args, func(_ string, a *sasl.Account) (*sasl.Account, error) {
		a.Password = hash
		return a, nil
	})
}

func exists(name string) error {
	return cli.Errorf(exitExists, "there is an account %s: posthaste account passwd changes its password", name)
}

// hash asks for the password of an account, which must be there or not, and makes its hash. The
// table is not locked while somebody types.
func (c *command) hash(name string, there bool) (string, error) {
	name, err := userName(name)
	if err != nil {
		return "", err
	}
	t, err := c.open(false)
	if err != nil {
		return "", err
	}
	_, found, err := t.Get(name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case found && !there:
		return "", exists(name)
	case !found && there:
		return "", noAccount(name)
	}
	password, err := c.prompts(name)
	if err != nil {
		return "", cli.Errorf(cli.ExitData, "%v", err)
	}
	hash, err := sasl.NewHash(c.scheme, password)
	if err != nil {
		return "", cli.Errorf(cli.ExitData, "%v", err)
	}
	return hash, nil
}

// appPassword makes an application password and prints it, or withdraws one.
func (c *command) appPassword() error {
	app := c.args[1]
	if !sasl.IsAppName(app) {
		return cli.Errorf(cli.ExitData, "%q cannot name an application password: expected 1 to 32 letters, digits, and . _ -", app)
	}
	password, hash := sasl.NewAppPassword()
	err := c.change(false, c.args[:1], func(name string, a *sasl.Account) (*sasl.Account, error) {
		i := slices.IndexFunc(a.Apps, func(p sasl.AppPassword) bool { return p.Name == app })
		switch {
		case c.remove && i < 0:
			return nil, cli.Errorf(cli.ExitNoInput, "the account %s has no application password %s", name, app)
		case c.remove:
			a.Apps = slices.Delete(a.Apps, i, i+1)
		case i >= 0:
			return nil, cli.Errorf(exitExists, "the account %s has an application password %s: withdraw it first with -r, or take another name", name, app)
		default:
			a.Apps = append(a.Apps, sasl.AppPassword{Name: app, Hash: hash})
		}
		return a, nil
	})
	if err == nil && !c.remove {
		fmt.Fprintln(c.Stdout, password)
	}
	return err
}

// setDisabled keeps users out, or lets them in again.
func (c *command) setDisabled(yes bool) error {
	return c.change(false, c.args, func(_ string, a *sasl.Account) (*sasl.Account, error) {
		a.Disabled = yes
		return a, nil
	})
}

// removeAll removes accounts.
func (c *command) removeAll() error {
	t, err := c.open(false)
	if err != nil {
		return err
	}
	for _, name := range c.args {
		if name, err = userName(name); err != nil {
			return err
		}
		found, err := t.Remove(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !found {
			return noAccount(name)
		}
		if err != nil {
			return err
		}
		if err := c.owner(name, false); err != nil {
			return err
		}
	}
	return c.build(t)
}

// owner lets an account that is called by an address send as that address, or takes that back:
// the entry of the first table of smtpd_sender_login_maps whose text can be edited, unless it
// says something else.
func (c *command) owner(name string, may bool) error {
	t, ok := tabletext.Editable(c.cfg.List("smtpd_sender_login_maps"))
	if !ok || !t.Exists() || !strings.Contains(name, "@") {
		return nil
	}
	old, found, err := t.Get(name)
	if err != nil || may == found || found && !strings.EqualFold(old, name) {
		return err
	}
	if err = t.Ours(); err != nil {
		return err
	}
	if may {
		err = t.Set(name, name)
	} else {
		_, err = t.Remove(name)
	}
	if err != nil {
		return err
	}
	return c.build(t)
}

// A Listed is an account as it is listed.
type Listed struct {
	User     string   `json:"user"`
	Disabled bool     `json:"disabled"`
	Password bool     `json:"password"`      // it has one besides those of applications
	Apps     []string `json:"app_passwords"` // their names
	Error    string   `json:"error,omitempty"`
}

// list prints accounts, all or those that are named.
func (c *command) list() error {
	t, err := c.open(false)
	if err != nil {
		return err
	}
	entries, err := t.Entries()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	wanted := map[string]bool{}
	for _, name := range c.args {
		if name, err = userName(name); err != nil {
			return err
		}
		wanted[table.Fold(name)] = true
	}
	seen := map[string]bool{}
	for _, e := range entries {
		key := table.Fold(e.Key)
		if seen[key] || len(c.args) > 0 && !wanted[key] {
			continue
		}
		seen[key] = true
		if err := c.print(listed(e)); err != nil {
			return err
		}
	}
	for _, name := range c.args {
		if prepared, _ := sasl.PrepareName(name); !seen[table.Fold(prepared)] {
			return noAccount(name)
		}
	}
	return nil
}

// listed is an entry as it is listed.
func listed(e tabletext.Entry) *Listed {
	l := &Listed{User: e.Key, Apps: []string{}}
	a, err := sasl.ParseAccount(e.Value)
	if err != nil {
		l.Error = err.Error()
		return l
	}
	l.Disabled, l.Password = a.Disabled, a.Password != ""
	for _, p := range a.Apps {
		l.Apps = append(l.Apps, p.Name)
	}
	return l
}

// print prints one account.
func (c *command) print(l *Listed) error {
	if c.json {
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.Stdout, "%s\n", b)
		return err
	}
	text := l.User
	switch {
	case l.Error != "":
		text += ": nobody can log in: " + l.Error
	case !l.Password && len(l.Apps) == 0:
		text += ": no password"
	case !l.Password:
		text += ": application passwords only"
	}
	if len(l.Apps) > 0 {
		text += "; application passwords " + strings.Join(l.Apps, ", ")
	}
	if l.Disabled {
		text += "; disabled"
	}
	_, err := fmt.Fprintln(c.Stdout, text)
	return err
}
