package whatif

import (
	"fmt"
	"reflect"
	"slices"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/qmgr/sched"
	"posthaste/qmgr/schedconf"
)

// read reads the scheduler's settings, with overrides.
func read(cfg *config.Config, over []config.Override, warn func(string, ...any)) (sched.Config, error) {
	cfg, err := cfg.With(over...)
	if err != nil {
		return sched.Config{}, cli.Errorf(cli.ExitUsage, "%w", err)
	}
	services, _, err := config.LoadMaster(cfg.Dir(), cfg)
	if err != nil {
		return sched.Config{}, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	c, err := schedconf.Load(cfg, services, warn)
	if err != nil {
		return c, cli.Errorf(cli.ExitUsage, "%w", err)
	}
	return c, nil
}

// effective refuses overrides that change nothing of what a forecast of this mail depends on.
func effective(cfg *config.Config, c *Copy, over []config.Override, warn func(string, ...any)) error {
	known := schedconf.Parameters(c.transports())
	before, err := read(cfg, nil, warn)
	if err != nil {
		return err
	}
	for _, o := range over {
		if !slices.Contains(known, o.Name) {
			return cli.Errorf(cli.ExitUsage, "%s has no effect on the forecast: it is no parameter of the scheduler's, or no mail in the queue goes by its transport", o.Name)
		}
		after, err := read(cfg, []config.Override{o}, warn)
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
