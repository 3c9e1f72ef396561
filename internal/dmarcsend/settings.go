package dmarcsend

import (
	"path/filepath"

	"posthaste/internal/config"
	"posthaste/internal/mailauth"
)

// OptionsOf are the Options that the configuration says, without Mail, Warn and Sent.
func OptionsOf(cfg *config.Config, c *mailauth.Checker) Options {
	return Options{Dir: filepath.Join(cfg.String("data_directory"), Dir), Organization: cfg.String("dmarc_report_organization"),
		Contact: cfg.String("dmarc_report_contact"), Extra: cfg.String("dmarc_report_extra_contact"), Sender: cfg.String("dmarc_report_sender"),
		Hostname: cfg.String("myhostname"), Checker: c}
}
