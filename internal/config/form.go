package config

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// checkForm checks the texts that have a form of their own beyond their type, so that a
// mistake is told with its line, and not by the service that comes upon it.
func (p *Param) checkForm(v value) error {
	switch p.Name {
	case "myhostname", "mydomain":
		return checkHostname(v.text)
	case "compatibility_level":
		_, err := ParseLevel(v.text)
		return err
	case "inet_protocols":
		return checkProtocols(v.list)
	case "metrics_listen":
		if _, _, err := net.SplitHostPort(v.text); v.text != "" && err != nil {
			return errors.New("expected an address and a port such as 127.0.0.1:9187")
		}
	case "console_listen":
		if _, _, err := net.SplitHostPort(v.text); err != nil && (!strings.HasPrefix(v.text, "unix:") || v.text == "unix:") {
			return errors.New("expected an address and a port such as 127.0.0.1:8025, or unix: and a path")
		}
	case "empty_address_local_login_sender_maps_lookup_key", "error_service_name":
		if v.text == "" {
			return errors.New("expected a text that is not empty")
		}
	case "queue_directory", "data_directory":
		if !strings.HasPrefix(v.text, "/") {
			return errors.New("expected the full path of a directory")
		}
	case "spool_content_directory":
		return checkDirectory(v.text)
	case "spool_directories", "spool_directories_absent":
		return checkDirectories(v.list)
	}
	return nil
}

// checkHostname accepts what RFC 1123 section 2.1 does, and underscores, which
// real names have.
func checkHostname(name string) error {
	if len(name) == 0 || len(name) > 253 {
		return errors.New("expected a host name of 1 to 253 characters")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("expected a host name such as mail.example.com; the label %q is none", label)
		}
		for i := 0; i < len(label); i++ {
			if !isNameByte(label[i]) && label[i] != '-' {
				return fmt.Errorf("expected a host name of letters, digits and hyphens, found %q", label[i])
			}
		}
	}
	return nil
}

func checkProtocols(list []string) error {
	for _, word := range list {
		switch strings.ToLower(word) {
		case "all", "ipv4", "ipv6":
		default:
			return fmt.Errorf("expected all, ipv4 or ipv6, found %q", word)
		}
	}
	if len(list) == 0 {
		return errors.New("expected all, ipv4 or ipv6")
	}
	return nil
}
