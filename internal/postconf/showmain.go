package postconf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/jsontext"
)

// delivers are the delivery agents: services of these commands have
// parameters of their own. Those of runsCommands have a time limit, too.
var (
	delivers     = []string{"error", "lmtp", "local", "pipe", "smtp", "virtual"}
	runsCommands = []string{"pipe", "spawn"}
)

// names collects the parameters that exist for this configuration, by class.
func (c *command) names(cfg *config.Config, check *config.NameCheck) (map[string]string, error) {
	class := make(map[string]string)
	for _, name := range cfg.Names() {
		if _, ok := config.Lookup(name); ok {
			class[name] = "service"
		} else if !check.Unused(name) {
			class[name] = "user"
		}
	}
	if err := c.serviceNames(class); err != nil {
		return nil, err
	}
	for _, p := range config.All() {
		set, _, _ := cfg.IsSet(p.Name)
		if set || p.Origin != config.OldName {
			class[p.Name] = "builtin"
		}
	}
	wanted := strings.FieldsFunc(c.class, isClassSeparator)
	maps.DeleteFunc(class, func(name, k string) bool {
		p, _ := config.Lookup(name)
		return !slices.Contains(wanted, "all") && !slices.Contains(wanted, k) &&
			!(slices.Contains(wanted, "own") && p.Origin == config.Own)
	})
	return class, nil
}

// serviceNames adds the parameters that the services of master.cf have.
func (c *command) serviceNames(class map[string]string) error {
	entries, err := c.entries()
	if isNoMaster(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.fields[1] != "unix" {
			continue
		}
		for _, f := range config.Families() {
			ok := slices.Contains(delivers, e.command)
			if f.Suffix == "time_limit" {
				ok = slices.Contains(runsCommands, e.command)
			}
			if ok {
				class[e.fields[0]+"_"+f.Suffix] = "service"
			}
		}
	}
	return nil
}

// showMain prints main.cf parameters.
func (c *command) showMain() error {
	cfg, err := c.readForDefaults()
	if err != nil {
		return err
	}
	check := &config.NameCheck{} // of defaults there is nothing to say
	if !c.flags['d'] {
		if check, err = c.checkNames(cfg); err != nil {
			return err
		}
	}
	class, err := c.names(cfg, check)
	if err != nil {
		return err
	}
	wanted := c.args
	if len(wanted) == 0 {
		wanted = slices.Sorted(maps.Keys(class))
	}
	for _, name := range wanted {
		if err := c.showParameter(cfg, class, name); err != nil {
			return err
		}
	}
	if !c.flags['d'] {
		for _, w := range cfg.Notes() {
			c.warn("%s", w)
		}
	}
	c.warnNames("main.cf: unused parameter", check.UnusedMain)
	c.warnNames("master.cf: unused parameter", check.UnusedMaster)
	return nil
}

// checkNames looks for mistyped names, and says which are undefined, which cannot be set,
// and what is in the files of tables: before the output, as Postfix does, which says after
// it what is unused.
func (c *command) checkNames(cfg *config.Config) (*config.NameCheck, error) {
	services, err := c.overrides()
	if err != nil {
		return nil, err
	}
	if _, err := c.entries(); err != nil {
		c.warn("%v", err) // there is none
	}
	check := cfg.CheckNames(services)
	c.warnNames("master.cf: read-only parameter assignment", check.ReadOnlyMaster)
	for _, w := range check.Tables {
		c.warn("%s", w)
	}
	c.warnNames("master.cf: undefined parameter", check.UndefinedMaster)
	c.warnNames("main.cf: undefined parameter", check.UndefinedMain)
	return check, nil
}

// overrides are the -o parameters of each service; none if there is no master.cf.
func (c *command) overrides() (services [][]config.Override, err error) {
	entries, err := c.entries()
	if err != nil && !isNoMaster(err) {
		return nil, err
	}
	for _, e := range entries {
		var over []config.Override
		for _, i := range e.options() {
			if o, err := config.ParseOverride(e.args[i]); err == nil { // others are master's to complain of
				over = append(over, o)
			}
		}
		services = append(services, over)
	}
	return services, nil
}

func (c *command) warnNames(what string, names []string) {
	for _, name := range names {
		c.warn("%s/%s: %s", c.dir, what, name)
	}
}

// readForDefaults reads main.cf; -d works without one.
func (c *command) readForDefaults() (*config.Config, error) {
	if c.flags['d'] {
		return config.LoadString("", c.over...)
	}
	return c.read()
}

// showParameter prints one parameter, if -n and -C let it.
func (c *command) showParameter(cfg *config.Config, class map[string]string, name string) error {
	p, known := config.Lookup(name)
	set, _, _ := cfg.IsSet(name)
	switch {
	case name == "config_directory" && c.dir != config.DefaultDir && !c.flags['d']:
		set = true // the command line or the environment set it
	case !known && !set:
		c.warn("%s: unknown parameter", name)
		return nil
	case class[name] == "" && (c.class != "all" || len(c.args) == 0):
		return nil
	}
	if c.flags['n'] && !set || c.flags['d'] && !known {
		return nil
	}
	value := cfg.Raw(name)
	if c.flags['d'] {
		value = cfg.RawDefault(name)
	}
	if c.flags['x'] && p.Type != config.Raw {
		var err error
		if value, err = cfg.Expand(value); err != nil {
			return fmt.Errorf("%s = %s: %w", name, cfg.Raw(name), err)
		}
	}
	if known {
		c.verbose("%s: %s", name, describe(&p))
	}
	c.printParameter(name, value)
	return nil
}

// describe says what a parameter means, in one line.
func describe(p *config.Param) string {
	notes := []string{p.Type.String(), "for " + p.Subsystem}
	if p.Type == config.Enum {
		notes[0] = "one of " + strings.Join(strings.Split(p.Values, "|"), ", ")
	}
	if p.Min != 0 {
		notes = append(notes, fmt.Sprintf("at least %d", p.Min))
	}
	if p.Max != 0 {
		notes = append(notes, fmt.Sprintf("at most %d", p.Max))
	}
	switch p.Origin {
	case config.Own:
		notes = append(notes, "Posthaste's own")
	case config.Newer:
		notes = append(notes, "in Postfix since after 3.7")
	case config.OldName:
		notes = append(notes, "an old name")
	}
	if reason := config.NoEffect(p.Name); reason != "" {
		notes = append(notes, "no effect: "+reason)
	}
	return p.Doc + " (" + strings.Join(notes, "; ") + ")"
}

func (c *command) printParameter(name, value string) {
	switch {
	case c.flags['j']:
		fmt.Fprintln(c.out, jsontext.Object(name, strings.Join(strings.Fields(value), " ")))
	case c.flags['H']:
		fmt.Fprintln(c.out, name)
	case c.flags['h']:
		fmt.Fprintln(c.out, parameter("", value, c.flags['f']))
	default:
		fmt.Fprintln(c.out, parameter(name, value, c.flags['f']))
	}
}
