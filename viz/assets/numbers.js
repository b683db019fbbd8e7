"use strict";
/** Writes a number as people do, as stats/rounding.py does: three digits that count, no powers of ten, no sign of a zero.
 *
 * What is closer to 0 than `least` is 0; a number that is unknown is a dash. */
const formatNumber = (value, least = 1e-6) => {
  if (value === null || Number.isNaN(value)) return "–";
  if (Math.abs(value) < least) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const digits = Math.min(20, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
};
