package maillog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"posthaste/internal/config"
)

// Open opens the log of a process such as "smtpd" where the configuration
// says: standard output, the postlog service (which writes maillog_file), or
// syslog. It does not wait for the postlog service: lines are kept until it
// answers.
func Open(cfg *config.Config, process string) (*Logger, error) {
	return open(cfg, process, cfg.String("queue_directory"), false)
}

// OpenHere is Open for a process whose working directory is the queue
// directory, and stays so when chroot makes that directory its root.
func OpenHere(cfg *config.Config, process string) (*Logger, error) {
	return open(cfg, process, ".", false)
}

// OpenDirect is Open for those who cannot go through the postlog service,
// because they run before it or are it: they write maillog_file themselves.
func OpenDirect(cfg *config.Config, process string) (*Logger, error) {
	return open(cfg, process, "", true)
}

// Parameters are the names of the parameters that opening the log reads, for a tool that checks
// those that it uses and no others.
func Parameters() []string {
	return []string{"queue_directory", "syslog_name", "syslog_protocol", "syslog_socket", "syslog_facility", "myhostname",
		"info_log_address_format", "maillog_file", "maillog_file_permissions", "maillog_file_prefixes", "maillog_format",
		"postlog_service_name"}
}

// Tag is the tag of a process: syslog_name and the process's name.
func Tag(cfg *config.Config, process string) string {
	return cfg.String("syslog_name") + "/" + process
}

func open(cfg *config.Config, process, queue string, direct bool) (*Logger, error) {
	sink, err := openSink(cfg, queue, direct)
	if err != nil {
		return nil, err
	}
	l := New(Tag(cfg, process), sink)
	l.lines.addresses = FormOf(cfg)
	if cfg.String("maillog_file") != "" && os.Getenv("POSTLOG_HOSTNAME") == "" {
		l.lines.setHost(cfg.String("myhostname")) // with syslog the name is syslogd's business
	}
	return l, nil
}

func openSink(cfg *config.Config, queue string, direct bool) (Sink, error) {
	format := Classic
	if cfg.String("maillog_format") == "json" {
		format = JSON
	}
	path := cfg.String("maillog_file")
	if path == "" {
		return NewSyslog(Syslog{Protocol: cfg.String("syslog_protocol"), Socket: cfg.String("syslog_socket"),
			Facility: cfg.String("syslog_facility"), JSON: format == JSON})
	}
	if err := CheckFile(cfg); err != nil {
		return nil, err
	}
	switch {
	case path == "/dev/stdout":
		return NewWriter(os.Stdout, format), nil
	case path == "/dev/stderr":
		return NewWriter(os.Stderr, format), nil
	case direct:
		perm, err := Permissions(cfg)
		if err != nil {
			return nil, err
		}
		return OpenFile(path, perm, format)
	}
	return NewPostlog(filepath.Join(queue, "public", cfg.String("postlog_service_name")), format), nil
}

// CheckFile says whether maillog_file is a path that maillog_file_prefixes
// allows. An empty maillog_file is allowed.
func CheckFile(cfg *config.Config) error {
	path := cfg.String("maillog_file")
	if path == "" {
		return nil
	}
	if filepath.IsAbs(path) && filepath.Clean(path) == path {
		for _, prefix := range cfg.List("maillog_file_prefixes") {
			if path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/") {
				return nil
			}
		}
	}
	return fmt.Errorf("maillog_file = %s: expected a path under one of: %s (maillog_file_prefixes)",
		path, strings.Join(cfg.List("maillog_file_prefixes"), " "))
}

// Permissions is the mode of a new log file.
func Permissions(cfg *config.Config) (os.FileMode, error) {
	text := cfg.String("maillog_file_permissions")
	mode, err := strconv.ParseUint(text, 8, 12)
	if err != nil || mode&^0o666 != 0 {
		return 0, errors.New("maillog_file_permissions = " + text + ": expected an octal file mode such as 0600, 0640 or 0644")
	}
	return os.FileMode(mode), nil
}
