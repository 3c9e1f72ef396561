package advice

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/config"
)

// Unwise returns one line for each setting that works and is probably not
// meant: it lets strangers in, shows secrets, or has mail wait for a key. It looks at the modes of files.
func Unwise(cfg *config.Config, services []config.Service) []string {
	u := &unwise{cfg: cfg}
	u.files()
	u.signing()
	for i := range services {
		s := &services[i]
		if s.Command != "smtpd" && s.Command != "postscreen" {
			continue
		}
		own, err := cfg.With(s.Overrides()...)
		if err != nil {
			continue // an error of the configuration, which check says
		}
		if strings.HasPrefix(s.Name, "127.") || strings.HasPrefix(s.Name, "[::1]:") || cfg.String("inet_interfaces") == "loopback-only" {
			continue // nobody is on the way
		}
		u.passwords(own, fmt.Sprintf("%s:%d: service %s/%s: ", s.File, s.Line, s.Name, s.Type))
	}
	return slices.Compact(u.list)
}

type unwise struct {
	cfg  *config.Config
	list []string
}

// say puts the place where a parameter is set before the text.
func (u *unwise) say(parameter, format string, args ...any) {
	text := parameter + ": " + fmt.Sprintf(format, args...)
	if set, file, line := u.cfg.IsSet(parameter); set && line > 0 {
		text = fmt.Sprintf("%s:%d: %s", file, line, text)
	}
	u.list = append(u.list, text)
}

// secretTable finds tables in the settings of which there is a password.
var secretTable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[\s,{=:])(?:mysql|pgsql|ldap):(/[^\s,{}]+)`) })

// passwordTable finds tables that are files.
var passwordTable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s,{=:])(?:hash|btree|lmdb|texthash|cdb):(/[^\s,{}]+)`)
})

// files are those that others should not be able to read.
func (u *unwise) files() {
	for _, parameter := range []string{"smtpd_tls_key_file", "smtpd_tls_eckey_file", "smtpd_tls_chain_files", "smtp_tls_key_file",
		"smtp_tls_eckey_file", "smtp_tls_chain_files", "lmtp_tls_key_file"} {
		value, err := u.cfg.Value(parameter)
		if err != nil {
			continue
		}
		for _, path := range strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) }) {
			if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte("PRIVATE KEY-----")) {
				u.secret(parameter, path, "a private key")
			}
		}
	}
	if file := u.cfg.String("smtpd_sasl_token_credentials_file"); file != "" {
		u.secret("smtpd_sasl_token_credentials_file", file, "a secret of the token endpoint")
	}
	if u.cfg.String("srs_domain") != "" {
		u.secret("srs_secret_file", u.cfg.String("srs_secret_file"), "a secret with which mail can be relayed here")
	}
	for _, parameter := range []string{"smtp_sasl_password_maps", "lmtp_sasl_password_maps", "smtpd_sasl_path", "account_maps"} {
		value, err := u.cfg.Value(parameter)
		if err != nil {
			continue
		}
		for _, m := range passwordTable().FindAllStringSubmatch(value, -1) {
			u.secret(parameter, m[1], "passwords")
			for _, t := range built(parameter, value) {
				u.secret(parameter, t.Path, "passwords")
			}
		}
	}
	for _, parameter := range u.cfg.Names() {
		if value, err := u.cfg.Value(parameter); err == nil {
			for _, m := range secretTable().FindAllStringSubmatch(value, -1) {
				u.secret(parameter, m[1], "a database's password")
			}
		}
	}
}

// secret says if everybody can read a file.
func (u *unwise) secret(parameter, path, what string) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 {
		u.say(parameter, "every user can read %s, where there is %s: chmod o-r %s", path, what, path)
	}
}

// passwords are not to be sent in the clear.
func (u *unwise) passwords(cfg *config.Config, place string) {
	if !cfg.Bool("smtpd_sasl_auth_enable") || cfg.Bool("smtpd_tls_auth_only") || cfg.Bool("smtpd_tls_wrappermode") ||
		cfg.String("smtpd_tls_security_level") == "encrypt" || cfg.Bool("smtpd_enforce_tls") ||
		slices.Contains(cfg.List("smtpd_sasl_security_options"), "noplaintext") {
		return
	}
	u.list = append(u.list, place+"passwords are accepted without TLS, and can be read on the network: set smtpd_tls_auth_only = yes")
}
