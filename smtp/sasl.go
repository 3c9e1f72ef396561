// Logging in to servers: which password, which mechanism, and the mechanisms
// themselves, seen from the client. RFC 4954.

package smtp

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emersion/go-sasl"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/reuse"
	"posthaste/internal/table"
)

// saslClient is what is configured of logging in to servers.
// It is read once and never changed; refused and tokens lock themselves.
type saslClient struct {
	enabled   bool        // sasl_auth_enable; false: nothing but the rules below is set
	passwords *table.Maps // sasl_password_maps: "user:password" by sender, server or destination
	bySender  bool        // sender_dependent_authentication: and so no session is shared by two senders
	delimiter string      // sasl_password_result_delimiter: between user and password
	filter    []string    // sasl_mechanism_filter; empty: any mechanism will do
	// What a mechanism must or must not be (noplaintext, ...): without TLS, with TLS, and with TLS
	// to a server that has proved who it is.
	plainRules, tlsRules, sureRules []string
	softBounce                      bool          // sasl_auth_soft_bounce: a password that is refused does not return mail
	search                          *table.Search // of senders; nil unless bySender
	refused                         *refusals     // logins that failed before (sasl_auth_cache_name); nil: nobody remembers
	tokens                          *tokens       // of smtp_sasl_token_command, which serves lmtp too
}

// newSASLClient reads the parameters of the program and opens the table of
// passwords. The table is opened with the service's privileges, before it gives
// them up: passwords are root's to read.
func newSASLClient(cfg *config.Config, lmtp bool, o table.Options) (c *saslClient, err error) {
	own := ownParameters(cfg, lmtp)
	c = &saslClient{
		enabled:    own.Bool("sasl_auth_enable"),
		bySender:   own.Bool("sender_dependent_authentication"),
		delimiter:  own.String("sasl_password_result_delimiter"),
		filter:     own.List("sasl_mechanism_filter"),
		plainRules: own.List("sasl_security_options"),
		tlsRules:   own.List("sasl_tls_security_options"),
		sureRules:  own.List("sasl_tls_verified_security_options"),
		softBounce: own.Bool("sasl_auth_soft_bounce"),
	}
	if !c.enabled {
		return c, nil
	}
	c.tokens = newTokens(cfg.List("smtp_sasl_token_command"), cfg.Duration("smtp_sasl_token_time"))
	if own.String("sasl_auth_cache_name") != "" {
		c.refused = newRefusals(own.Duration("sasl_auth_cache_time"))
	}
	c.passwords = openMaps(own, "sasl_password_maps", o)
	if c.bySender {
		c.search, err = newSearch(cfg, o)
	}
	return c, err
}

// password looks up what to log in with: by the sender, where that is asked for, by
// the server's name, by the destination as it is written. An error is of the table;
// without a table nothing is found.
func (d *delivery) password(t *target) (user, pass string, found bool, err error) {
	c := d.a.sasl
	if !c.enabled || c.passwords.Empty() {
		return "", "", false, nil
	}
	ctx := context.Background() // whoever follows the delivery does not see passwords
	var value string
	// A return path of ours (return_path_domain) has no account anywhere: whose mail it is decides.
	if sender := d.req.OwnSender(); c.bySender && sender != "" {
		value, _, found, err = c.passwords.LookupAddress(ctx, c.search, sender, table.KeysDefault)
	}
	// The server's name first: a relay that serves several destinations has one account for all.
	for _, key := range []string{t.host, d.hop.text} {
		if !found && err == nil {
			value, found, err = c.passwords.Lookup(ctx, key, false)
		}
	}
	if err != nil || !found {
		return "", "", false, err
	}
	user, pass, _ = strings.Cut(value, c.delimiter)
	return user, pass, true, nil
}

// hasPassword says whether there is anything to log in with; when that cannot be
// found out, that there is. plainAllowed asks: with a password at stake TLS is not
// left out.
func (d *delivery) hasPassword(t *target) bool {
	_, _, found, err := d.password(t)
	return found || err != nil
}

// login authenticates us, if the server asks for it and there is something to do it
// with. A failure concerns this server only, and defers the mail at worst, unless
// the server itself says 5xx.
func (d *delivery) login(ctx context.Context, s *session, t *target) *failure {
	c := d.a.sasl
	if !c.enabled || s.offers&offersAuth == 0 {
		return nil
	}
	fail := func(text string) *failure {
		return &failure{kind: sessionFailed, status: dsn.S(4, 7, 0), text: text, detail: s.detail(), said: true}
	}
	user, pass, found, err := d.password(t)
	if err != nil {
		d.log.LogWarning(maillog.SMTPProblem{ID: d.id, Reason: err.Error()})
		return fail("SASL authentication failed; cannot look up the password for server " + s.namaddr)
	}
	// No password, no login: the server says itself whom it does not take mail from.
	if !found || user == "" {
		return nil
	}
	// There is a password, but no mechanism that may be used for it. The mail is
	// deferred until the administrator changes something: without a login the
	// server would probably refuse it.
	name := d.mechanism(s)
	if name == "" {
		return fail("SASL authentication failed; cannot authenticate to server " + s.namaddr + ": no mechanism available")
	}
	// At most twice: once with a token that was kept, which may have been withdrawn since, and once
	// with one that is new.
	var f *failure
	renewed := false
	for kept := true; kept; {
		secret := pass
		kept = false
		if isTokenMechanism(name) {
			if secret, kept, err = c.tokens.get(ctx, user, pass, t.host, time.Now()); err != nil {
				d.log.LogWarning(maillog.SMTPNoToken{ID: d.id, Username: user, Reason: err.Error()})
				return fail("SASL authentication failed; cannot get a token for server " + s.namaddr)
			}
		}
		if f = d.loginAs(s, t, name, user, secret, fail); f == nil || f.code == 0 || renewed {
			return f
		}
		if pass == "" {
			c.tokens.forget(user, secret) // it may have been withdrawn: get another one
			renewed = true
		}
	}
	return f
}

// loginAs tries one password or token, unless the server is known to have refused
// it.
func (d *delivery) loginAs(s *session, t *target, mechanism, user, secret string, fail func(string) *failure) *failure {
	c := d.a.sasl
	if r, ok := c.refused.find(t.host, user, secret, time.Now()); ok {
		f := fail("SASL [CACHED] authentication failed; server " + s.namaddr + " said: " + r.text)
		f.status = r.status
		return f
	}
	f := d.authenticate(s, newMechanism(mechanism, user, secret, t), fail)
	// 535 is about the password itself (RFC 4954 section 6). Servers lock accounts after too many.
	if f != nil && f.code == 535 {
		c.refused.add(t.host, user, secret, f.status, f.detail.DiagText, time.Now())
	}
	return f
}

// isTokenMechanism says whether a mechanism sends a token in place of a password.
func isTokenMechanism(name string) bool { return name == "OAUTHBEARER" || name == "XOAUTH2" }

// mechanisms that we know, the best first: those that do not show the password to
// the server, then those that rely on TLS to hide it. Those that send a token in
// place of a password are used only if smtp_sasl_mechanism_filter names them:
// nothing in the password table tells a token from a password.
var mechanisms = []string{"SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN", "LOGIN", "OAUTHBEARER", "XOAUTH2"}

// mechanism chooses one that the server offers and the rules allow; empty if there
// is none.
func (d *delivery) mechanism(s *session) string {
	c := d.a.sasl
	rules := c.plainRules
	// The more is known of who listens, the less a mechanism must protect the password by itself.
	if s.tls != nil {
		if rules = c.tlsRules; s.tls.matched {
			rules = c.sureRules
		}
	}
	// Our order decides, not the server's: an attacker could list PLAIN first.
	offered := strings.Fields(s.auth)
	for _, m := range mechanisms {
		if !slices.Contains(offered, m) || forbidden(m, rules) {
			continue
		}
		named := slices.ContainsFunc(c.filter, func(f string) bool { return strings.EqualFold(f, m) })
		not := slices.ContainsFunc(c.filter, func(f string) bool { return strings.EqualFold(f, "!"+m) })
		token := isTokenMechanism(m)
		// A filter with names allows these only; one that has only "!name" allows
		// all others.
		onlyNegated := !slices.ContainsFunc(c.filter, func(f string) bool { return !strings.HasPrefix(f, "!") })
		if named || !not && !token && onlyNegated {
			return m
		}
	}
	return ""
}

// forbidden says whether the words of smtp_sasl_security_options rule a mechanism
// out.
func forbidden(mechanism string, rules []string) bool {
	scram := strings.HasPrefix(mechanism, "SCRAM")
	plain := !scram && mechanism != "CRAM-MD5"
	for _, r := range rules {
		switch strings.ToLower(r) {
		// The words are Cyrus SASL's, and mean what its plug-ins declare of themselves.
		case "noplaintext":
			if plain {
				return true
			}
		case "noactive", "mutual_auth":
			// SCRAM alone has the server prove that it knows the password.
			if !scram {
				return true
			}
		case "nodictionary":
			if !scram && !strings.Contains(mechanism, "OAUTH") {
				return true
			}
		case "forward_secrecy":
			// Of the mechanisms that there are, only those that negotiate a key have it.
			return true
		}
	}
	return false
}

// authenticate goes through the steps of a mechanism. A failure says what the
// server said, if it was the server that refused; fail makes one of our own.
// Secrets are kept out of logs and transcripts. When it returns, the wire's trace
// is what it was before.
func (d *delivery) authenticate(s *session, mech sasl.Client, fail func(string) *failure) *failure {
	name, first, err := mech.Start()
	if err != nil {
		return fail("SASL authentication failed; cannot authenticate to server " + s.namaddr + ": " + err.Error())
	}
	stage := stageEHLO // of which AUTH is taken to be a part
	if d.set.lmtp {
		stage = stageLHLO
	}
	s.out = append(append(s.out, "AUTH "...), name...)
	// An initial response goes with the command; one that is empty is "=" (RFC 4954 section 4).
	if first != nil {
		s.out = append(s.out, ' ')
		if s.out = base64.StdEncoding.AppendEncode(s.out, first); len(first) == 0 {
			s.out = append(s.out, '=')
		}
	}
	trace := s.trace
	defer func() { s.trace, s.secret = trace, false }()
	if trace != nil {
		s.trace = func(arrow string, text []byte) { trace(arrow, withoutLogin(arrow, text, s.secret)) }
	}
	// No mechanism that we know has as many steps. A server must not be able to
	// keep us busy for ever.
	for i := range 10 {
		s.secret = i > 0 // what follows AUTH is secret too
		s.out = append(s.out, "\r\n"...)
		if err := s.flush(d.set.time.hello); err != nil {
			return s.broken(stage, err)
		}
		r, err := s.readReply(d.set.time.hello, nil)
		if err != nil {
			return s.broken(stage, err)
		}
		if r.ok() {
			// A server that lets anybody in may only want to see the mail.
			if f, ok := mech.(interface{ Done() error }); ok && f.Done() != nil {
				return fail("SASL authentication failed; server " + s.namaddr + " did not prove that it knows the password")
			}
			return nil
		}
		if r.code != 334 {
			f := s.refused(sessionFailed, &r)
			f.said, f.code = true, r.code
			f.text = "SASL authentication failed; server " + s.namaddr + " said: " + f.detail.DiagText
			if d.a.sasl.softBounce {
				f.status.Class = 4
			}
			return f
		}
		challenge, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(r.raw[min(4, len(r.raw)):])))
		var answer []byte
		if err == nil {
			answer, err = mech.Next(challenge)
		}
		if err != nil {
			s.out = append(reuse.Truncated(s.out), "*\r\n"...) // RFC 4954 section 4: the client gives up
			return fail("SASL authentication failed; cannot authenticate to server " + s.namaddr + ": " + err.Error())
		}
		s.out = base64.StdEncoding.AppendEncode(s.out, answer)
	}
	return fail("SASL authentication failed; server " + s.namaddr + " asks without end")
}

// withoutLogin is a line of a login without what others must not read: challenges, which may
// repeat what we have said, and what we say after AUTH.
func withoutLogin(arrow string, text []byte, secret bool) []byte {
	switch {
	case arrow == ">" && secret:
		return []byte(notice.Secret)
	case arrow == "<" && bytes.HasPrefix(text, []byte("334")):
		return []byte("334 " + notice.Secret)
	}
	return text
}

// newMechanism makes the client's side of a mechanism, for one exchange. name is
// one of mechanisms.
func newMechanism(name, user, secret string, t *target) sasl.Client {
	switch name {
	case "PLAIN":
		return sasl.NewPlainClient("", user, secret)
	case "LOGIN":
		return &loginClient{user: user, pass: secret}
	case "CRAM-MD5":
		return &cramClient{user: user, pass: secret}
	case "SCRAM-SHA-1":
		return &scramClient{name: name, hash: sha1.New, user: user, pass: secret}
	case "SCRAM-SHA-256":
		return &scramClient{name: name, hash: sha256.New, user: user, pass: secret}
	case "XOAUTH2":
		return &xoauth2Client{user: user, token: secret}
	}
	port, _ := strconv.Atoi(t.port) // parsePort has checked it
	return sasl.NewOAuthBearerClient(&sasl.OAuthBearerOptions{Username: user, Token: secret, Host: t.host, Port: port})
}

// loginClient is LOGIN, which has no specification: the server asks twice, and
// what it asks is not worth looking at.
type loginClient struct {
	user, pass string
	step       int // challenges answered
}

// Start implements sasl.Client. There is no initial response: some servers do not
// know of any.
func (c *loginClient) Start() (string, []byte, error) { return "LOGIN", nil, nil }

// Next implements sasl.Client.
func (c *loginClient) Next([]byte) ([]byte, error) {
	switch c.step++; c.step {
	case 1:
		return []byte(c.user), nil
	case 2:
		return []byte(c.pass), nil
	}
	return nil, sasl.ErrUnexpectedServerChallenge
}

// cramClient is CRAM-MD5, RFC 2195: the client sends a digest of the server's
// challenge, keyed with the password. An eavesdropper can try passwords against it.
type cramClient struct {
	user, pass string
	done       bool // the challenge has been answered; there is but one
}

// Start implements sasl.Client.
func (c *cramClient) Start() (string, []byte, error) { return "CRAM-MD5", nil, nil }

// Next implements sasl.Client.
func (c *cramClient) Next(challenge []byte) ([]byte, error) {
	if c.done {
		return nil, sasl.ErrUnexpectedServerChallenge
	}
	c.done = true
	h := hmac.New(md5.New, []byte(c.pass))
	h.Write(challenge)
	return []byte(c.user + " " + hex.EncodeToString(h.Sum(nil))), nil
}

// xoauth2Client is XOAUTH2, of some large mail providers: a bearer token with a
// user's name, in a form of its own.
type xoauth2Client struct{ user, token string }

// Start implements sasl.Client.
func (c *xoauth2Client) Start() (string, []byte, error) {
	return "XOAUTH2", []byte("user=" + c.user + "\x01auth=Bearer " + c.token + "\x01\x01"), nil
}

// Next answers what can only be an error's description: the server refuses
// once it has seen an answer.
func (c *xoauth2Client) Next([]byte) ([]byte, error) { return []byte{}, nil }

// scramClient is SCRAM, RFC 5802 and RFC 7677, without channel binding. The
// password never goes over the wire, and the server proves that it knows it: a
// server in between learns nothing it could use.
type scramClient struct {
	name       string
	hash       func() hash.Hash
	user, pass string
	nonce      string // our part of it; empty: Start draws one
	bare       string // client-first-message-bare
	proof      []byte // what the server must send at the end; nil until the challenge has come
	step       int    // challenges answered
	proved     bool   // the server has sent proof
}

// maxIterations bounds the work that a server can make us do: servers ask for some
// thousands.
const maxIterations = 1 << 20

// Start implements sasl.Client: client-first-message. "n,," says that we do not
// bind the channel.
func (c *scramClient) Start() (string, []byte, error) {
	if c.nonce == "" {
		c.nonce = rand.Text()
	}
	c.bare = "n=" + strings.NewReplacer("=", "=3D", ",", "=2C").Replace(c.user) + ",r=" + c.nonce
	return c.name, []byte("n,," + c.bare), nil
}

// Next implements sasl.Client.
func (c *scramClient) Next(challenge []byte) ([]byte, error) {
	switch c.step++; c.step {
	case 1:
		return c.final(string(challenge))
	case 2:
		return []byte{}, c.check(challenge)
	}
	return nil, sasl.ErrUnexpectedServerChallenge
}

// final is client-final-message, RFC 5802 section 3, in answer to the server's
// first message: salt, rounds and both nonces. What the server must prove is worked
// out with it.
func (c *scramClient) final(first string) ([]byte, error) {
	var nonce string
	var salt []byte
	rounds := 0
	for _, f := range strings.Split(first, ",") {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "r":
			nonce = value
		case "s":
			salt, _ = base64.StdEncoding.DecodeString(value)
		case "i":
			rounds, _ = strconv.Atoi(value)
		case "m":
			return nil, errors.New("SCRAM: the server asks for an extension")
		}
	}
	// A nonce that does not begin with ours is of another exchange, one that is no longer than ours
	// has nothing of the server's in it: either would let an old exchange be played again.
	if !strings.HasPrefix(nonce, c.nonce) || nonce == c.nonce || len(salt) == 0 || rounds < 1 || rounds > maxIterations {
		return nil, fmt.Errorf("SCRAM: malformed challenge, or one that asks for too much work")
	}
	// The names are those of RFC 5802 section 3: SaltedPassword, ClientKey,
	// StoredKey, AuthMessage, ClientSignature, ServerSignature.
	salted, err := pbkdf2.Key(c.hash, c.pass, salt, rounds, c.hash().Size())
	if err != nil {
		return nil, err
	}
	mac := func(key []byte, text string) []byte {
		h := hmac.New(c.hash, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	clientKey := mac(salted, "Client Key")
	stored := c.hash()
	stored.Write(clientKey)
	last := "c=biws,r=" + nonce
	all := c.bare + "," + first + "," + last
	signature := mac(stored.Sum(nil), all)
	subtle.XORBytes(clientKey, clientKey, signature)
	c.proof = mac(mac(salted, "Server Key"), all)
	return []byte(last + ",p=" + base64.StdEncoding.EncodeToString(clientKey)), nil
}

// check makes sure that the server knows the password too. Its last message comes
// with a challenge or with the success, depending on the server: see Done.
func (c *scramClient) check(challenge []byte) error {
	text, ok := bytes.CutPrefix(challenge, []byte("v="))
	sum, err := base64.StdEncoding.DecodeString(string(text))
	// In constant time: the server is not trusted until it has proved itself.
	if !ok || err != nil || c.proof == nil || !hmac.Equal(sum, c.proof) {
		return errors.New("SCRAM: the server did not prove that it knows the password")
	}
	c.proved = true
	return nil
}

// Done says whether the server has said everything that it must. authenticate asks
// it before it believes in a success.
func (c *scramClient) Done() error {
	if !c.proved {
		return errors.New("SCRAM: the exchange is not complete")
	}
	return nil
}
