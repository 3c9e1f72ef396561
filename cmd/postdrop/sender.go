package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
	"posthaste/internal/whoami"
)

// A refusal is why a sender is not taken, which sendmail repeats. The exit status is
// exitTempFail for all of them: the sendmail program of Postfix 3.7 has no other.
type refusal string

func (r refusal) Error() string { return string(r) }

// login is what the calling user is looked up by.
func login() string {
	if who, ok := whoami.Lookup(); ok {
		return who.Name
	}
	return "uid:" + strconv.Itoa(os.Getuid())
}

// mayUse says whether the user may send as sender, the null sender being "". The
// error is a refusal.
func mayUse(cfg *config.Config, login, sender string, warn func(string)) error {
	specs := cfg.List("local_login_sender_maps")
	maps := table.OpenMaps("local_login_sender_maps", specs, table.Options{Warn: warn})
	defer maps.Close()
	patterns, found, err := maps.Lookup(context.Background(), login, false)
	if err != nil {
		warn(err.Error())
		return refusal(fmt.Sprintf("local_login_sender_maps table lookup error for '%s'", cfg.String("local_login_sender_maps")))
	}
	if found && allowed(patterns, sender, cfg.String("empty_address_local_login_sender_maps_lookup_key"), &table.Search{
		Delimiters:   cfg.String("recipient_delimiter"),
		OwnerRequest: cfg.Bool("owner_request_special"),
		DoubleBounce: cfg.String("double_bounce_sender"),
	}) {
		return nil
	}
	return refusal(fmt.Sprintf("not authorized to use sender='%s'", sender))
}

// allowed says whether one of patterns, which are separated by comma or space,
// is for sender: "*" is for all, null for the null sender, @domain for the
// domain's, and an address, quoted as it has to be, for itself with and without
// an extension.
func allowed(patterns, sender, null string, search *table.Search) bool {
	domain := sender[max(strings.LastIndexByte(sender, '@'), 0):]
	bare, _ := search.Strip(sender)
	bare = rfc5322.Quote(bare)
	for patterns != "" {
		var p string
		p, patterns = cutPattern(patterns)
		var match bool
		switch {
		case p == "":
		case p[0] == '@':
			match = strings.EqualFold(p, domain)
		case p == "*":
			match = true
		case strings.EqualFold(p, null):
			match = sender == ""
		default:
			match = strings.EqualFold(p, bare)
		}
		if match {
			return true
		}
	}
	return false
}

// cutPattern takes the first pattern off a list. What separates patterns may
// stand in one between double quotes, or after a backslash.
func cutPattern(list string) (pattern, rest string) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch list[i] {
		case '\\':
			i++
		case '"':
			quoted = !quoted
		case ' ', '\t', '\r', '\n', ',':
			if !quoted {
				return list[:i], list[i+1:]
			}
		}
	}
	return list, ""
}
