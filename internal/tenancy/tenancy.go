// Package tenancy says whose mail a message is by tenant_maps: by the login, the address of the client or the sender. cleanup asks it for
// each message whose header does not say, and restrictions ask it before there is a message.
//
// # Parameters
//
// tenant_maps.
package tenancy

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/table"
)

// A NameError is a value of tenant_maps that is no name of a tenant.
type NameError string

func (e NameError) Error() string {
	return fmt.Sprintf("tenant_maps: %.100q is no name of a tenant", string(e))
}

// Open opens tenant_maps. Tables that cannot be opened are no error here: lookups fail.
func Open(cfg *config.Config, o table.Options) *table.Maps {
	return table.OpenMaps("tenant_maps", cfg.List("tenant_maps"), o)
}

// Lookup finds the tenant of mail from who has logged in as user, from an address, with a sender in internal form; each
// may be empty. It is empty if nobody is named. An error is a NameError, or that of a table.
func Lookup(ctx context.Context, maps *table.Maps, user, addr, sender string) (string, error) {
	// The login was proved. The address was at least that of a connection. The sender is what the client
	// says, and comes last.
	value, found, err := maps.Lookup(ctx, user, false)
	if !found && err == nil && addr != "" {
		value, found, err = maps.LookupClientAddr(ctx, addr)
	}
	if sender := strings.ToLower(sender); !found && err == nil && sender != "" {
		value, found, err = maps.Lookup(ctx, sender, false)
		if at := strings.LastIndexByte(sender, '@'); !found && err == nil && at >= 0 {
			value, found, err = maps.Lookup(ctx, sender[at+1:], true)
		}
	}
	if err == nil && found && !mail.GroupName(value) {
		return "", NameError(value)
	}
	return value, err
}
