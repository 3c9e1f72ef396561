// AUTH, RFC 4954: which mechanisms a client is offered, and the exchange. The
// mechanisms and the passwords are package sasl's; the engine runs the exchange, with
// our words.

package smtpd

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	gosasl "github.com/emersion/go-sasl"

	"posthaste/internal/anvil"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/resolver"
	"posthaste/internal/sasl"
	"posthaste/internal/sasl/saslconf"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// saslSettings are the smtpd_sasl_ parameters. They do not change.
type saslSettings struct {
	// backend knows the users; nil when there is no authentication. It may be used by
	// all sessions at once.
	backend sasl.Backend
	service string // smtpd_sasl_service, which backends are told
	// options are the properties that keep a mechanism from being offered, must those
	// that it has to have; under TLS tlsOptions and tlsMust take their place
	// (smtpd_sasl_security_options, smtpd_sasl_tls_security_options).
	options, tlsOptions sasl.Property
	must, tlsMust       sasl.Property
	filter              *table.List // mechanisms that may be offered
	// exceptions are the clients that are not told of AUTH. They may use it all the same.
	exceptions *table.List
	limit      int  // octets of one line of the client's in an exchange
	broken     bool // AUTH= is offered as well, for old clients
}

// readSASL reads them and opens the backend. What is wrong with the configuration
// is an error; what makes authentication weaker than it could be is a warning.
func readSASL(cfg *config.Config, dns resolver.Resolver, o table.Options) (*saslSettings, error) {
	s := &saslSettings{service: cfg.String("smtpd_sasl_service"), limit: cfg.Int("smtpd_sasl_response_limit"),
		broken: cfg.Bool("broken_sasl_auth_clients")}
	if !cfg.Bool("smtpd_sasl_auth_enable") {
		return s, nil
	}
	var err error
	if s.backend, err = saslconf.Open(cfg, dns, s.service, o); err != nil {
		return nil, err
	}
	if s.options, s.must, err = securityOptions(cfg.List("smtpd_sasl_security_options")); err != nil {
		return nil, fmt.Errorf("smtpd_sasl_security_options: %w", err)
	}
	if s.tlsOptions, s.tlsMust, err = securityOptions(cfg.List("smtpd_sasl_tls_security_options")); err != nil {
		return nil, fmt.Errorf("smtpd_sasl_tls_security_options: %w", err)
	}
	list := func(name string, kind table.Kind) *table.List {
		l, e := table.NewList(name, cfg.List(name), table.ListOptions{Kind: kind, Parent: true, Table: o})
		err = errors.Join(err, e)
		return l
	}
	s.filter = list("smtpd_sasl_mechanism_filter", table.Strings)
	s.exceptions = list("smtpd_sasl_exceptions_networks", table.Clients)
	return s, err
}

// securityOptions translates the words of Postfix's options: noplaintext and the
// like are properties that a mechanism must not have, forward_secrecy and
// mutual_auth properties that it must have.
func securityOptions(words []string) (not, must sasl.Property, err error) {
	for _, w := range words {
		switch strings.ToLower(w) {
		case "noanonymous":
			not |= sasl.Anonymous
		case "noplaintext":
			not |= sasl.Plaintext
		case "nodictionary":
			not |= sasl.Dictionary
		case "noactive":
			not |= sasl.Active
		case "forward_secrecy":
			must |= sasl.ForwardSecrecy
		case "mutual_auth":
			must |= sasl.MutualAuth
		default:
			return 0, 0, fmt.Errorf("%q: unknown option", w)
		}
	}
	return not, must, nil
}

// authState is one AUTH command under way. It is emptied by endAuth; the outcome is
// in the session's SASL.
type authState struct {
	exchange  sasl.Exchange // nil before the backend has begun it
	mechanism string        // as the client named it, in upper case
}

// mechanisms are the names of those that the client may use now. It is asked again
// for each AUTH: a client that has not looked at the reply to EHLO must not get
// more.
func (s *session) mechanisms(ctx context.Context) []string {
	set := s.srv.sasl
	// Without TLS the password would go over the wire in the clear
	// (smtpd_tls_auth_only).
	if set.backend == nil || s.srv.tlsSet.authOnly && s.a.TLS == nil {
		return nil
	}
	list, err := set.backend.Mechanisms(ctx, s.saslClient())
	if err != nil {
		s.srv.log.Warning("SASL: %v", err)
		return nil
	}
	not, must := set.options, set.must
	if s.a.TLS != nil {
		not, must = set.tlsOptions, set.tlsMust
	}
	var names []string
	for _, m := range list {
		if m.Properties&not != 0 || m.Properties&must != must {
			continue
		}
		pass, err := set.filter.Match(ctx, m.Name)
		if err != nil {
			s.srv.log.Warning("%v", err)
		}
		if pass {
			names = append(names, m.Name)
		}
	}
	return names
}

// offeredMechanisms are those of the EHLO reply, separated by blanks; empty: no
// AUTH. Clients of smtpd_sasl_exceptions_networks are not told, since some would
// insist on logging in.
func (s *session) offeredMechanisms() string {
	if s.srv.sasl.backend == nil {
		return ""
	}
	ctx := s.ctx()
	hidden, err := s.srv.sasl.exceptions.MatchClient(ctx, s.a.Name, s.a.AddrText)
	if err != nil {
		s.srv.log.Warning("%v", err)
	}
	if hidden {
		return ""
	}
	return strings.Join(s.mechanisms(s.untraced()), " ")
}

// authInOrder refuses an AUTH command that may not come now, RFC 4954 section 4,
// and otherwise says what the engine is to see. The order of the checks, and the
// codes, are Postfix's. One user for a session: section 4 allows no second AUTH
// after a success.
func (s *session) authInOrder() (feed string, r *smtpwire.Reply) {
	f := strings.Fields(s.cmd.Args)
	switch {
	case s.srv.sasl.backend == nil || s.hiddenKeywords()["auth"]:
		return "", smtpwire.R(503, dsn.S(5, 5, 1), "Error: authentication not enabled")
	case s.set.heloRequired && s.a.Helo == "":
		return "", s.heloFirst()
	case len(f) < 1 || len(f) > 2:
		return "", smtpwire.R(501, dsn.S(5, 5, 4), "Syntax: AUTH mechanism")
	case s.a.HasSender:
		return "", smtpwire.R(503, dsn.S(5, 5, 1), "Error: MAIL transaction in progress")
	case s.srv.tlsSet.authOnly && s.a.TLS == nil:
		return "", smtpwire.R(538, dsn.S(5, 7, 0), "Encryption required for requested authentication mechanism")
	case s.a.SASL.Username != "":
		return "", smtpwire.R(503, dsn.S(5, 5, 1), "Error: already authenticated")
	case s.srv.limits.exceeded(s, anvil.Auth):
		return "", smtpwire.R(450, dsn.S(4, 7, 1), "Error: too many AUTH commands from "+s.a.AddrText)
	}
	s.auth.mechanism = strings.ToUpper(f[0])
	feed = "AUTH " + engineMechanism
	if len(f) == 2 {
		if !validBase64(f[1]) {
			return "", malformedBase64
		}
		feed += " " + f[1]
	}
	return feed + "\r\n", nil
}

// engineMechanism is the name that the engine sees for every mechanism, so that it
// never judges one.
const engineMechanism = "CLIENT"

// malformedBase64 is the reply to what cannot be decoded, RFC 4954 section 4.
var malformedBase64 = smtpwire.R(501, dsn.S(5, 5, 2), "Error: malformed base64 in response")

// validBase64 says whether the engine will be able to decode s. If it could not, it
// would answer in its own words.
func validBase64(s string) bool {
	if s == "=" { // an empty initial response, RFC 4954 section 4
		return true
	}
	_, err := base64.StdEncoding.DecodeString(s)
	return err == nil
}

// saslClient is the client as backends see it: Dovecot's policy server judges by
// address, and channel binding needs the state of TLS.
func (s *session) saslClient() sasl.Client {
	c := sasl.Client{Service: s.srv.sasl.service, RemoteAddr: s.a.AddrText, RemotePort: s.a.Port,
		LocalAddr: s.a.ServerAddr, LocalPort: s.a.ServerPort}
	if s.a.TLS != nil {
		c.TLS = &s.a.TLS.State
		if s.tls.cert != nil {
			c.Certificate = s.tls.cert.Leaf
		}
	}
	return c
}

// authServer gives the engine its side of the exchange. When it returns an error,
// authFailed has set the reply already. untraced: a log of these lookups would
// contain passwords.
func (s *session) authServer(string) (gosasl.Server, error) {
	ctx := s.untraced()
	names := s.mechanisms(ctx)
	if !slices.Contains(names, s.auth.mechanism) {
		return nil, s.authFailed(sasl.ErrMechanism)
	}
	c := s.saslClient()
	// A client that sees no -PLUS mechanism is right to say that it could have
	// bound the channel; if we offered one, the same statement means that somebody
	// has cut it out of our offer (RFC 5802).
	c.Unbound = !slices.ContainsFunc(names, func(m string) bool { return strings.HasSuffix(m, "-PLUS") })
	c.Shared = s.srv.limits.spared(ctx, s)
	x, err := s.srv.sasl.backend.Start(ctx, s.auth.mechanism, c)
	if err != nil {
		return nil, s.authFailed(err)
	}
	s.auth.exchange = x
	return &exchangeServer{s, x}, nil
}

// exchangeServer is an exchange as the engine runs it: go-sasl's Server.
type exchangeServer struct {
	s *session
	x sasl.Exchange
}

// Next implements go-sasl's Server: it takes a response and returns the next
// challenge. done means success; every failure is an error.
func (e *exchangeServer) Next(response []byte) (challenge []byte, done bool, err error) {
	challenge, done, err = e.x.Next(e.s.untraced(), response)
	if err != nil {
		return nil, false, e.s.authFailed(err)
	}
	return challenge, done, nil
}

// authFailed words the refusal and logs it. What it returns is for the engine. The
// log line is the one that fail2ban and its like watch, in Postfix's form.
func (s *session) authFailed(err error) error {
	user := "(unavailable)"
	if s.auth.exchange != nil {
		user = cmp.Or(s.auth.exchange.Username(), user)
	}
	// The delay is for guesses, not for a backend that is down. Replies that are
	// waiting are sent before it.
	var f *sasl.Failure
	if errors.As(err, &f) && s.set.errorSleep > 0 { // guessing passwords must be slow from the first try on
		s.wire.flush()
		s.pause(s.set.errorSleep)
	}
	reason := err.Error()
	if errors.Is(err, sasl.ErrMechanism) {
		reason = "Invalid authentication mechanism" // as logs have it
	}
	switch {
	case errors.As(err, &f), errors.Is(err, sasl.ErrMechanism):
		s.out = smtpwire.R(535, dsn.S(5, 7, 8), "Error: authentication failed: "+smtpwire.Printable(reason))
	case errors.Is(err, sasl.ErrMalformed): // the mechanism's own failure; what cannot be decoded is 501, RFC 4954 section 4
		s.out = smtpwire.R(535, dsn.S(5, 7, 8), "Error: authentication failed: malformed response")
	default:
		s.out = smtpwire.R(454, dsn.S(4, 7, 0), "Temporary authentication failure")
	}
	s.srv.log.LogWarning(maillog.SASLFailed{Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort, Method: clip(s.auth.mechanism, 40),
		Reason: clip(reason, 200), Username: clip(user, 200)})
	return err
}

// challenge sends the client a challenge; text is its base64. It is flushed by the
// read that follows.
func (s *session) challenge(text string) {
	s.queueText([]byte("334 " + text + "\r\n"))
	s.history.Out([]byte("334 " + text + "\r\n"))
	s.traceReply([]byte("334 " + notice.Secret)) // it may repeat what the client has said
}

// continuation reads the client's response to a challenge, for the engine. For a
// malformed response the engine gets "*", with which a client cancels (RFC 4954
// section 4), and our reply replaces the engine's. The line limit is
// smtpd_sasl_response_limit: tokens and tickets are longer than commands. Nothing
// of it goes into a transcript.
func (s *session) continuation() (string, error) {
	s.wire.timeout = s.set.timeout
	s.extendDeadline(time.Now(), 0)
	line, err := s.wire.line(s.srv.sasl.limit, nil)
	if err == errLineTooLong {
		s.out = smtpwire.R(500, dsn.S(5, 5, 6), "Error: authentication exchange line is too long") // RFC 4954 section 4
		return "*\r\n", nil
	}
	if err != nil {
		s.lost(err)
		return "", err
	}
	s.history.In([]byte(notice.Secret))
	s.traceCommand([]byte(notice.Secret))
	text := string(line)
	if text != "*" && !validBase64(text) {
		s.out = malformedBase64
		text = "*"
	}
	return text + "\r\n", nil
}

// authenticated ends a successful exchange. The user's name comes from a backend,
// and goes into log lines and Received: fields: hence Printable.
func (s *session) authenticated() *smtpwire.Reply {
	s.a.SASL.Method = s.auth.mechanism
	s.a.SASL.Username = smtpwire.Printable(s.auth.exchange.Username())
	return smtpwire.R(235, dsn.S(2, 7, 0), "Authentication successful")
}

// endAuth releases the exchange, whatever its outcome. The backend frees what it
// holds.
func (s *session) endAuth() {
	if s.auth.exchange != nil {
		s.auth.exchange.Close()
	}
	s.auth = authState{}
}

// logout forgets who the client has authenticated as: after STARTTLS (RFC 3207
// section 4.2) and XCLIENT.
func (s *session) logout() {
	s.endAuth()
	s.a.SASL.Method, s.a.SASL.Username, s.a.SASL.Sender = "", "", ""
}
