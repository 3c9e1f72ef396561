// Package saslconf opens the users that smtpd_sasl_type names, as the SMTP server does, for every service that lets them in: the
// SMTP server itself, and the console.
//
// # Security
//
// It is done with the rights of who starts the service, before the service gives them up: tables, keys and credentials may be for
// root alone. The authorization server is named by the administrator, so that its address may be one of a network of our own.
//
// # Parameters
//
// account_failure_limit, account_failure_time, account_maps, cyrus_sasl_config_path, data_directory, smtpd_sasl_local_domain,
// smtpd_sasl_path, smtpd_sasl_type, and those that begin with smtpd_sasl_token_.
package saslconf

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/sasl"
	"posthaste/internal/smallfile"
	"posthaste/internal/table"
	"posthaste/internal/webclient"
)

// maxRoots bounds the file with authorities, in octets.
const maxRoots = 4 << 20

// Open opens what knows the users: smtpd_sasl_type. dns finds the authorization server, where there is one. service is what the
// backend is told that a user logs in to, as smtpd_sasl_service. An error is a mistake in the configuration, or a file that
// cannot be read; what makes authentication weaker than it could be is a warning.
func Open(cfg *config.Config, dns resolver.Resolver, service string, o table.Options) (sasl.Backend, error) {
	path := cfg.String("smtpd_sasl_path")
	switch kind := cfg.String("smtpd_sasl_type"); kind {
	case "dovecot":
		if !filepath.IsAbs(path) && !strings.Contains(path, ":") {
			path = filepath.Clean(path) // below the queue directory, where services run
		}
		if cfg.String("smtpd_sasl_token_keys") != "" {
			o.Warn("smtpd_sasl_token_keys is for smtpd_sasl_type = accounts or table: Dovecot's own settings say which tokens it takes")
		}
		return sasl.NewDovecot(path), nil
	case "accounts":
		tokens, err := readTokens(cfg, dns)
		if err != nil {
			return nil, err
		}
		return sasl.NewAccounts(sasl.AccountOptions{Maps: table.OpenMaps("account_maps", cfg.List("account_maps"), o),
			Realm: cfg.String("smtpd_sasl_local_domain"), Tokens: tokens, Now: time.Now,
			Failures: cfg.Int("account_failure_limit"), FailureTime: cfg.Duration("account_failure_time")}), nil
	case "table":
		tokens, err := readTokens(cfg, dns)
		if err != nil {
			return nil, err
		}
		// Without a key that survives the process, the salts that unknown users get
		// differ from one process to the next, while those of users do not: whoever
		// asks twice can tell them apart.
		key, err := sasl.DecoyKey(cfg.String("data_directory"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.Warn("SASL: the salts of unknown users change with each process, so that a client can tell which users exist: " + err.Error())
		}
		return sasl.NewUsers(table.OpenMaps("smtpd_sasl_path", table.SplitList(path), o), cfg.String("smtpd_sasl_local_domain"), tokens, key), nil
	case "cyrus":
		dirs := sasl.CyrusDirs(cfg.Dir())
		if own := cfg.String("cyrus_sasl_config_path"); own != "" {
			dirs = filepath.SplitList(own)
		}
		c, warnings, err := sasl.NewCyrus(sasl.CyrusOptions{Application: path, Dirs: dirs, Service: service, Realm: cfg.String("smtpd_sasl_local_domain")})
		if err != nil {
			return nil, fmt.Errorf("smtpd_sasl_path: %w", err)
		}
		for _, w := range warnings {
			o.Warn("smtpd_sasl_path: " + w)
		}
		return c, nil
	default:
		return nil, fmt.Errorf("smtpd_sasl_type = %s: expected accounts, dovecot, cyrus (saslauthd), or table with smtpd_sasl_path = type:table", kind)
	}
}

// readTokens reads which OAuth tokens are accepted (OAUTHBEARER, XOAUTH2): those that a key of
// ours verifies, or those that an authorization server vouches for. nil is none. dns finds that
// server.
func readTokens(cfg *config.Config, dns resolver.Resolver) (sasl.TokenVerifier, error) {
	keys := cfg.List("smtpd_sasl_token_keys")
	introspection, userinfo := cfg.String("smtpd_sasl_token_introspection_url"), cfg.String("smtpd_sasl_token_userinfo_url")
	switch {
	case len(keys) == 0 && introspection == "" && userinfo == "":
		return nil, nil
	case len(keys) > 0 && introspection+userinfo != "", introspection != "" && userinfo != "":
		return nil, errors.New("smtpd_sasl_token_keys, smtpd_sasl_token_introspection_url and smtpd_sasl_token_userinfo_url: only one of them may be set")
	}
	expect := sasl.TokenOptions{Keys: keys, Issuer: cfg.String("smtpd_sasl_token_issuer"),
		Audience: cfg.String("smtpd_sasl_token_audience"), Claim: cfg.String("smtpd_sasl_token_claim")}
	if len(keys) > 0 {
		t, err := sasl.NewTokens(expect)
		if err != nil {
			return nil, fmt.Errorf("smtpd_sasl_token_keys, _issuer, _audience, _claim: %w", err)
		}
		return t, nil
	}
	roots, err := Roots(cfg.String("smtpd_sasl_token_CAfile"))
	if err != nil {
		return nil, fmt.Errorf("smtpd_sasl_token_CAfile: %w", err)
	}
	// The administrator names the server: it may be in a network of our own.
	anywhere := func(context.Context, netip.Addr) (bool, error) { return true, nil }
	e, err := sasl.NewTokenEndpoint(sasl.EndpointOptions{URL: introspection + userinfo, Userinfo: userinfo != "", TokenOptions: expect,
		Scope: cfg.String("smtpd_sasl_token_scope"), Credentials: cfg.String("smtpd_sasl_token_credentials_file"),
		Timeout: cfg.Duration("smtpd_sasl_token_timeout"), CacheTime: cfg.Duration("smtpd_sasl_token_cache_time"),
		Client: webclient.New(webclient.Options{Resolver: dns, Allowed: anywhere, Roots: roots})})
	if err != nil {
		return nil, fmt.Errorf("OAuth tokens (smtpd_sasl_token_...): %w", err)
	}
	return e, nil
}

// Roots reads the authorities in a file, or, where file is empty, those of the system. It is for the time before a service gives
// up its view of the file system.
func Roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return x509.SystemCertPool()
	}
	text, err := smallfile.Read(file, maxRoots)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: there is no certificate in it", file)
	}
	return pool, nil
}
