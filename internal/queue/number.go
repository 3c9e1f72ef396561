package queue

// SpoolShift is where in a message number the number of the spool is that gave it, where the queue is in several directories
// (package spools): above it are five bits. Everywhere else they are zero.
const SpoolShift = 59
