package maillog

import (
	"posthaste/internal/config"
	"posthaste/internal/rfc5322"
)

// An AddressForm is how addresses stand in log lines (info_log_address_format).
type AddressForm uint8

// The forms of addresses.
const (
	External AddressForm = iota // local parts that need it are quoted: "name with spaces"@example.com
	Internal                    // nothing is quoted, as Postfix before 3.5 had it
)

// FormOf is the form that the configuration asks for.
func FormOf(cfg *config.Config) AddressForm {
	if cfg.String("info_log_address_format") == "internal" {
		return Internal
	}
	return External
}

// Of gives addr, which is unquoted, in the form f. The null address is "" in both.
func (f AddressForm) Of(addr string) string {
	if f == Internal {
		return addr
	}
	return rfc5322.Quote(addr)
}

// Address gives addr, which is unquoted, in the form that the log's lines have.
func (l *Logger) Address(addr string) string {
	if l == nil {
		return External.Of(addr)
	}
	return l.lines.addresses.Of(addr)
}
