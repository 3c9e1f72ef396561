// Package queueclient is the way of the queue tools (postqueue, postsuper, postcat, qshape,
// posthaste spool, ...) to the queue: the services that know it while the mail system runs,
// the spool itself while it is down, and the conditions that select messages of it.
//
// # Security
//
// The tools are not set-gid or set-uid: the permissions of the queue directory
// decide. [Queue.Permitted] only says early, and in words, what the kernel
// would say later.
package queueclient
