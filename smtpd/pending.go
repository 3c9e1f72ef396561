package smtpd

import (
	"errors"

	"github.com/emersion/go-sasl"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/smtpwire"
)

type (
	authState     struct{}
	saslSettings  struct{}
	proxySettings struct{}
	xforward      struct{ ident string }
)

const (
	xclientNames  = "NAME ADDR PROTO HELO REVERSE_NAME PORT LOGIN DESTADDR DESTPORT"
	xforwardNames = "NAME ADDR PROTO HELO SOURCE PORT IDENT"
)

var notYet = smtpwire.R(502, dsn.S(5, 5, 1), "Error: command not implemented")

func (x *xforward) apply(*mail.Client)                    {}
func (x *xforward) log(*maillog.SMTPDClient)              {}
func (s *session) continuation() (string, error)          { return "", errors.New("x") }
func (s *session) challenge(string)                       {}
func (s *session) authServer(string) (sasl.Server, error) { return nil, errors.New("x") }
func (s *session) authInOrder() (string, *smtpwire.Reply) { return "", notYet }
func (s *session) authenticated() *smtpwire.Reply         { return notYet }
func (s *session) xclient() (*smtpwire.Reply, error)      { return notYet, nil }
func (s *session) xforwardCmd() *smtpwire.Reply           { return notYet }
func (s *session) offeredMechanisms() string              { return "" }
func (s *session) mayXclient() bool                       { return false }
func (s *session) mayXforward() bool                      { return false }
func (s *session) proxyHeader() error                     { return nil }

func (s *session) logout() {}
