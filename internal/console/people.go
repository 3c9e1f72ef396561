package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"posthaste/internal/sasl"
	"posthaste/internal/table"
)

const (
	// maxPassword and maxName bound what is taken for a password and a name, in octets.
	maxPassword, maxName = 1024, 255
	// providerPrefix begins the names of persons that an OpenID provider has vouched for, groupPrefix in
	// console_role_maps those of its groups, and tokenPrefix those of programs. No other name begins so.
	providerPrefix, groupPrefix, tokenPrefix = "oidc/", "oidc-group/", "token/"
)

// people say who may log in with a password, and what everybody may do. Methods may be called concurrently.
type people struct {
	// own are the users of console_user_maps, who may look; nil: there are none.
	own       sasl.Backend
	operators *table.List // those of them who may operate
	// others are the users of smtpd_sasl_type; nil: they cannot log in. service is what their backend is told.
	others  sasl.Backend
	service string
	// provider lets in others, whom it vouches for; nil: there is none.
	provider *oidcProvider
	// roles are what console_role_maps says: of everybody, in addition.
	roles *table.Maps
}

var (
	errLogin   = errors.New("the name or the password is wrong")
	errNoUsers = errors.New("nobody can log in with a password: set console_user_maps or console_sasl_users, or let people in by console_oidc_issuer")
	// errUnverified says that it is not known whether a password is right. The log says why.
	errUnverified = errors.New("it cannot be verified at the moment who you are: the log says why")
)

// A deniedError is that of somebody who is who he says, but may do nothing here. A stranger is told no more than of a wrong
// password.
type deniedError struct{ why string }

func (e *deniedError) Error() string { return e.why }

// A client is where a login comes from.
type client struct {
	address string // without its port, or "local"
	sasl    sasl.Client
}

// login verifies a password, with the users of console_user_maps first. errLogin says that it is wrong, or that there is no such
// user; a *deniedError that the user may do nothing here.
func (p *people) login(ctx context.Context, from client, user, password string) (who person, err error) {
	if p.own == nil && p.others == nil {
		return who, errNoUsers
	}
	if user == "" || password == "" || len(user) > maxName || len(password) > maxPassword || strings.ContainsRune(user+password, 0) {
		return who, errLogin
	}
	name, err := "", errLogin
	if p.own != nil {
		if name, err = verify(ctx, p.own, sasl.Client{Service: "console"}, user, password); err == nil {
			return p.ownUser(ctx, name)
		}
	}
	if p.others == nil || !errors.Is(err, errLogin) {
		return who, err
	}
	from.sasl.Service = p.service
	if name, err = verify(ctx, p.others, from.sasl, user, password); err != nil {
		return who, err
	}
	if !plainName(name) || strings.HasPrefix(name, providerPrefix) || strings.HasPrefix(name, groupPrefix) || strings.HasPrefix(name, tokenPrefix) {
		return who, &deniedError{fmt.Sprintf("the name of the user of smtpd_sasl_type cannot be that of one of the console: %q", name)}
	}
	who.user = name
	return who, p.assign(ctx, &who, name)
}

// ownUser is one of console_user_maps.
func (p *people) ownUser(ctx context.Context, name string) (who person, err error) {
	who = person{user: name, role: look}
	operator, err := p.operators.Match(ctx, name)
	if operator {
		who.role = operate
	}
	if err != nil {
		return who, err
	}
	return who, p.assign(ctx, &who, name)
}

// assign gives a person the rights that console_role_maps has for keys. The error is a *deniedError if there are none at all.
func (p *people) assign(ctx context.Context, who *person, keys ...string) error {
	for _, key := range keys {
		words, found, err := p.roles.Lookup(ctx, key, false)
		if err == nil && found {
			err = who.grant(words)
		}
		if err != nil {
			return err
		}
	}
	if who.role == nobody {
		return &deniedError{"console_role_maps has no role for " + strings.Join(keys, ", ")}
	}
	return nil
}

// verify verifies a password with a backend, and returns the user's name in its only form.
func verify(ctx context.Context, backend sasl.Backend, from sasl.Client, user, password string) (name string, err error) {
	list, err := backend.Mechanisms(ctx, from)
	if err != nil {
		return "", err
	}
	steps := map[string][]string{"PLAIN": {"\x00" + user + "\x00" + password}, "LOGIN": {"", user, password}}
	at := slices.IndexFunc(list, func(m sasl.Mechanism) bool { return steps[m.Name] != nil })
	if at < 0 {
		return "", errors.New("the users of smtpd_sasl_type have no mechanism PLAIN or LOGIN, which the console needs")
	}
	x, err := backend.Start(ctx, list[at].Name, from)
	if err != nil {
		return "", err
	}
	defer x.Close()
	done := false
	for _, text := range steps[list[at].Name] {
		response := []byte(text)
		if text == "" {
			response = nil // the server speaks first
		}
		if _, done, err = x.Next(ctx, response); err != nil || done {
			break
		}
	}
	var failure *sasl.Failure
	if errors.As(err, &failure) || err == nil && !done {
		return "", errLogin
	}
	return x.Username(), err
}

// plainName says whether a name is one word that a log and a page show as it is.
func plainName(name string) bool {
	return name != "" && len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar
	})
}
