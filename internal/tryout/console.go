package tryout

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"posthaste/internal/config"
	"posthaste/internal/sasl"
	"posthaste/internal/service"
)

const (
	passwordFile = "console_password"
	usersFile    = "console_users"
	// consoleGap is how far the console's port is from that of SMTP: 8025 for 2525.
	consoleGap = 5500
)

// consoleCF is what main.cf has for the console.
const consoleCF = `# The console's pages: the user's name, and what is in the file console_password.
console_listen = 127.0.0.1:%[3]d
console_user_maps = texthash:%[1]s/etc/console_users
console_operators = %[2]s
`

// consolePort is the console's for a port of SMTP.
func consolePort(port int) int {
	if port > 65535-consoleGap {
		return port - consoleGap
	}
	return port + consoleGap
}

// hasConsole says whether the program of the console is there.
func hasConsole(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, service.ConsoleProgram))
	return err == nil && info.Mode().IsRegular()
}

// commentedConsole is the line of master.cf, as it is in the one of a new installation.
var commentedConsole = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^#(console +unix .*)$`) })

// makeUser makes the console's one user, with a password that nobody else knows, if there is none
// yet. The password is in a file of its own, so that it is on no screen.
func (s *System) makeUser() error {
	password := filepath.Join(s.ConfigDir(), passwordFile)
	if _, err := os.Lstat(password); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := rand.Text()
	secret, err := sasl.NewSecret(text)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.ConfigDir(), usersFile), fmt.Appendf(nil, "%s %s\n", Recipient(), secret), 0o600); err != nil {
		return err
	}
	return os.WriteFile(password, []byte(text+"\n"), 0o600)
}

// consoleHint says where the console is; nothing where there is none.
func (s *System) consoleHint(cfg *config.Config, services []config.Service) string {
	for i := range services {
		if services[i].Command == service.ConsoleName {
			address := cfg.String("console_listen")
			if !strings.HasPrefix(address, "unix:") {
				scheme := "http"
				if cfg.Bool("console_tls") {
					scheme = "https"
				}
				address = scheme + "://" + address + "/"
			}
			if _, err := os.Stat(filepath.Join(s.ConfigDir(), passwordFile)); err == nil {
				address += fmt.Sprintf(", user %s, password in %s", Recipient(), filepath.Join(s.ConfigDir(), passwordFile))
			}
			return "  console      " + address + "\n"
		}
	}
	return ""
}
