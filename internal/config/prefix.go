package config

import "time"

// A Prefixed reads the parameters whose names begin with the name of a transport or of a
// program: cfg.Prefix("lmtp").Int("mx_address_limit") is the value of lmtp_mx_address_limit.
// So code that serves several of them names each of its parameters once.
//
// Of a parameter that exists for each transport (Families), a transport for which main.cf says
// nothing has the default of all. The methods panic, as those of Config do, if there is neither
// a parameter of that name nor a family of that suffix.
type Prefixed struct {
	cfg    *Config
	prefix string
}

// Prefix returns the parameters whose names are prefix, an underscore, and a suffix.
func (c *Config) Prefix(prefix string) Prefixed { return Prefixed{c, prefix} }

// Name returns the name of a parameter, for messages about it.
func (p Prefixed) Name(suffix string) string { return p.prefix + "_" + suffix }

// source is the parameter that has the value: NAME_suffix where that is set or declared for this
// prefix, else what the family of suffix names as its default.
func (p Prefixed) source(suffix string) string {
	name := p.Name(suffix)
	if p.cfg.isSet(name) {
		return name
	}
	r := declared()
	if _, ok := r.index[name]; ok {
		return name
	}
	if f, ok := r.families[suffix]; ok {
		return f.Fallback
	}
	return name // which panics, and says what is missing
}

// String returns the value of a parameter, as Config.String does.
func (p Prefixed) String(suffix string) string { return p.cfg.String(p.source(suffix)) }

// Int returns the value of an Int or Bytes parameter.
func (p Prefixed) Int(suffix string) int { return p.cfg.Int(p.source(suffix)) }

// Bool returns the value of a Bool parameter.
func (p Prefixed) Bool(suffix string) bool { return p.cfg.Bool(p.source(suffix)) }

// Duration returns the value of a Duration parameter.
func (p Prefixed) Duration(suffix string) time.Duration { return p.cfg.Duration(p.source(suffix)) }

// List returns the items of a List parameter. The slice is shared: do not change it.
func (p Prefixed) List(suffix string) []string { return p.cfg.List(p.source(suffix)) }
