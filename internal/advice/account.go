package advice

import (
	"slices"

	"posthaste/internal/config"
	"posthaste/internal/rate"
	"posthaste/internal/sasl"
)

// accounts looks at the accounts of people who send mail, at their limits, and at what is reported
// of the mail of others.
func (c *checker) accounts() {
	limits := append(c.of("account_recipient_limit"), c.of("account_recipient_limit_maps")...)
	limits = slices.DeleteFunc(limits, func(v value) bool { return v.text == "" })
	if len(limits) > 0 && !slices.ContainsFunc(c.services, func(s config.Service) bool { return s.Name == "sendlimit" && s.Command == "sendlimit" }) {
		c.warn(limits[0], "master.cf has no line of sendlimit, which counts: clients that have logged in are told to try later (451); \"posthaste upgrade-configuration\" adds it")
	}
	for _, v := range limits {
		if v.name == "account_recipient_limit" {
			if _, err := rate.ParseList(v.text); err != nil {
				c.stop(v, "%v", err)
			}
			continue
		}
		for _, e := range c.entries(v) {
			if _, err := rate.ParseList(e.value); err != nil {
				c.warn(e.at(v), "%s: %v: the account can send nothing", e.key, err)
			}
		}
	}
	if v := c.of("dmarc_report_enable"); len(v) > 0 && c.cfg.Bool("dmarc_report_enable") && c.cfg.String("mail_authentication") != "check" {
		c.warn(v[0], "there is nothing to report: mail of strangers is checked with mail_authentication = check")
	}
	if !slices.ContainsFunc(c.of("smtpd_sasl_type"), func(v value) bool { return v.text == "accounts" }) {
		return
	}
	for _, v := range c.of("account_maps") {
		for _, e := range c.entries(v) {
			if _, err := sasl.ParseAccount(e.value); err != nil {
				c.warn(e.at(v), "%s: %v: nobody can log in with this account", e.key, err)
			}
		}
	}
}
