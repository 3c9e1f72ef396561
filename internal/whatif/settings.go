package whatif

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/qmgr/sched"
	"posthaste/qmgr/schedconf"
)

// Settings are main.cf and master.cf, as they were read. No file is read of them later: who asks
// may be in a place from where there are none to be seen. Methods may be called concurrently.
type Settings struct {
	cfg    *config.Config
	master string
}

// ReadSettings reads the master.cf beside the main.cf that cfg is of.
func ReadSettings(cfg *config.Config) (*Settings, error) {
	text, err := os.ReadFile(filepath.Join(cfg.Dir(), "master.cf"))
	if err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	return NewSettings(cfg, string(text)), nil
}

// NewSettings are settings with a master.cf that is given as text.
func NewSettings(cfg *config.Config, master string) *Settings { return &Settings{cfg, master} }

const (
	// maxChanges and maxValue bound what a stranger may ask for: parameters, and octets of a value.
	maxChanges, maxValue = 20, 200
	// plainValue is what values of parameters of the scheduler are made of.
	plainValue = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,=/- "
)

// Changes reads the lines NAME=VALUE of somebody who need not have the right to read main.cf, or any
// file. A value that stands for that of another parameter ($NAME), or that names a file, is refused:
// an error could say what is there. Empty lines are passed over.
func Changes(lines []string) (over []config.Override, err error) {
	for _, line := range lines {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		o, err := config.ParseOverride(line)
		switch {
		case err != nil:
			return nil, cli.Errorf(cli.ExitUsage, "%w", err)
		case len(over) == maxChanges || len(o.Name)+len(o.Value) > maxValue:
			return nil, cli.Errorf(cli.ExitUsage, "at most %d parameters, each of at most %d octets, are changed at a time", maxChanges, maxValue)
		case strings.Trim(o.Value, plainValue) != "" || slices.ContainsFunc(strings.FieldsFunc(o.Value, separates), func(w string) bool { return w[0] == '/' }):
			return nil, cli.Errorf(cli.ExitUsage, "%s: a value is given here as it is: numbers, names and times, and no file and no other parameter", o.Name)
		}
		over = append(over, o)
	}
	return over, nil
}

func separates(r rune) bool { return r == ' ' || r == ',' }

// read reads the scheduler's settings, with overrides.
func (s *Settings) read(over []config.Override, warn func(string, ...any)) (sched.Config, error) {
	cfg, err := s.cfg.With(over...)
	if err != nil {
		return sched.Config{}, cli.Errorf(cli.ExitUsage, "%w", err)
	}
	services, _ := config.LoadMasterString(s.master, cfg) // what is wrong with lines of it is master's to say
	c, err := schedconf.Load(cfg, services, warn)
	if err != nil {
		return c, cli.Errorf(cli.ExitUsage, "%w", err)
	}
	return c, nil
}

// effective refuses overrides that change nothing of what a forecast of this mail depends on.
func (s *Settings) effective(c *Copy, over []config.Override, warn func(string, ...any)) error {
	known := schedconf.Parameters(c.transports())
	before, err := s.read(nil, warn)
	if err != nil {
		return err
	}
	for _, o := range over {
		if !slices.Contains(known, o.Name) {
			return cli.Errorf(cli.ExitUsage, "%s has no effect on the forecast: it is no parameter of the scheduler's, or no mail in the queue goes by its transport", o.Name)
		}
		after, err := s.read([]config.Override{o}, warn)
		if err != nil {
			return err
		}
		if same(c, &before, &after) {
			return cli.Errorf(cli.ExitUsage, "%s has no effect on the forecast: the value is what holds already, or another parameter decides", o)
		}
	}
	return nil
}

// same says whether two settings are the same for all mail of a copy.
func same(c *Copy, a, b *sched.Config) bool {
	for _, t := range c.transports() {
		if settings(a, mail.Transport(t)) != settings(b, mail.Transport(t)) {
			return false
		}
	}
	weight := func(s *sched.Config, tenant string) int {
		if s.TenantWeight == nil {
			return 1
		}
		return max(s.TenantWeight(tenant), 1)
	}
	for i := range c.Rows {
		if t := c.Rows[i].Tenant; t != "" && weight(a, t) != weight(b, t) {
			return false
		}
	}
	plain := func(s sched.Config) sched.Config {
		s.Transport, s.TenantWeight, s.Seed = nil, nil, 0
		return s
	}
	return reflect.DeepEqual(plain(*a), plain(*b))
}

// title names overrides, for a column.
func title(over []config.Override) string {
	text := ""
	for i, o := range over {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprint(o)
	}
	return text
}
