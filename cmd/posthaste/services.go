package main

import (
	"posthaste/cleanup"
	"posthaste/internal/acme"
	"posthaste/internal/anvil"
	"posthaste/internal/bounce"
	"posthaste/internal/comeback"
	"posthaste/internal/policyhost"
	"posthaste/internal/postlog"
	"posthaste/internal/sendlimit"
	"posthaste/internal/service"
	"posthaste/internal/showq"
	"posthaste/internal/suppress"
	"posthaste/internal/table/proxymap"
	"posthaste/internal/unsubscribe"
	"posthaste/internal/verify"
	"posthaste/local"
	"posthaste/local/discard"
	"posthaste/local/errordrop"
	"posthaste/local/pipe"
	"posthaste/local/spawn"
	"posthaste/local/virtual"
	"posthaste/pickup"
	"posthaste/qmgr"
	"posthaste/smtp"
	"posthaste/smtpd"
	"posthaste/trivialrewrite"
)

// services are the programs that master.cf may name.
func services() map[string]service.Spec {
	list := []service.Spec{
		cleanup.Spec(),
		pickup.Spec(),
		qmgr.Spec(),
		smtpd.Spec(),
		smtpd.ScreenSpec(),
		trivialrewrite.Spec(),
		postlog.Spec(),
		bounce.Spec(),
		verify.Spec(),
		showq.Spec(),
		anvil.Spec(),
		sendlimit.Spec(),
		suppress.Spec(),
		comeback.Spec(),
		acme.Spec(),
		policyhost.Spec(),
		unsubscribe.Spec(),
		proxymap.Spec(nil),
		service.MetricsSpec(nil),
		service.ConsoleSpec(nil),
		service.InjectSpec(nil),
		service.EventsSpec(nil),
		smtp.Spec(),
		smtp.LMTPSpec(),
		local.Spec(),
		virtual.Spec(),
		pipe.Spec(),
		spawn.Spec(),
		discard.Spec(),
		errordrop.Spec(),
	}
	specs := make(map[string]service.Spec, len(list))
	for _, s := range list {
		specs[s.Process] = s
	}
	return specs
}
