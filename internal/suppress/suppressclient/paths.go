package suppressclient

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/returnpath"
	"posthaste/internal/smallfile"
)

// Bounds of return_path_secret_file and of a secret, in octets.
const (
	maxSecrets = 64 << 10
	minSecret  = 16 // a token has 80 bits of a hash: a secret that can be guessed is less
)

// ReadPaths reads how return paths are made; nil without return_path_domain. Only root may be able to read the file
// with their secrets.
func ReadPaths(cfg *config.Config) (*returnpath.Coder, error) {
	domain := cfg.String("return_path_domain")
	if domain == "" {
		return nil, nil
	}
	// A local part of 63 octets, "@" and the domain must fit into a path (RFC 5321 section 4.5.3.1.3).
	if !strings.Contains(domain, ".") || strings.ContainsAny(domain, "@ <>") || len(domain) > 190 {
		return nil, fmt.Errorf("return_path_domain: %q is not a domain", domain)
	}
	c := &returnpath.Coder{Domain: domain, MaxDays: int(cfg.Duration("return_path_max_age") / (24 * time.Hour))}
	var err error
	c.Secrets, err = secrets(cfg, "return_path_secret_file")
	if err != nil {
		return nil, err
	}
	return c, nil
}

// secrets reads the file that a parameter names: each line that is not empty is a secret.
func secrets(cfg *config.Config, parameter string) (list []string, err error) {
	path := cfg.String(parameter)
	text, err := smallfile.Read(path, maxSecrets)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", parameter, err)
	}
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimRight(line, "\r")
		if line != "" && len(line) < minSecret {
			return nil, fmt.Errorf("%s: %s:%d: a secret must have at least %d characters", parameter, path, n+1, minSecret)
		}
		if line != "" {
			list = append(list, line)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %s: there is no secret in it", parameter, path)
	}
	return list, nil
}
