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
