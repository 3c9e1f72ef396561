package proto

// OverrideFlags are the flags that receive_override_options takes away. Words
// that it does not know are ignored: the configuration has been checked.
func OverrideFlags(options []string) (off SubmitFlags) {
	for _, o := range options {
		switch o {
		case "no_address_mappings":
			off |= SubmitMap | SubmitBCC
		case "no_header_body_checks":
			off |= SubmitFilter
		case "no_milters":
			off |= SubmitMilter
		}
	}
	return off
}

// AutoUTF8 is SubmitAutoUTF8 when smtputf8_autodetect_classes names the source of a
// message (sendmail, smtpd, forward, bounce, notify, verify) or all of them, else nothing.
func AutoUTF8(classes []string, source string) SubmitFlags {
	for _, c := range classes {
		if c == source || c == "all" {
			return SubmitAutoUTF8
		}
	}
	return 0
}
